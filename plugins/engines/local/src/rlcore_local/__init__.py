"""The `local` engine: an HTTP server over transformers weights that speaks SGLang's native protocol.

`python -m rlcore_local --model-path DIR ...` starts it; `server` documents the wire.
"""
