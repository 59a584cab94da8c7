-- One POST of 200 bytes, the same for every request: no Lua runs while wrk measures.
wrk.method = "POST"
wrk.body = string.rep("m", 200)
wrk.headers["Content-Type"] = "application/octet-stream"

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\nJSON {"requests": %d, "seconds": %.6f, "p50_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f, '
      .. '"bad_status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, errors.status, errors.connect, errors.read,
    errors.write, errors.timeout))
end
