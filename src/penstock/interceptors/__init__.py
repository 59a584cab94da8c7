"""Interceptors: a stream's bytes to message payloads and back.

`chain.chain_factory` makes the chain of a stream from its configuration; `delimited.cut_lines` and
`prefixed.cut_length_prefixed` cut a whole body in one go. Nothing is imported here: the linter
reads `options`, and need not load what does the work.
"""
