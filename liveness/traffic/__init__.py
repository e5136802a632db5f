"""Recorded traffic of gateways: `liveness record` and `liveness replay`.

- `frame_splitter.py` finds the frames in a stream, and `traffic_lines.py` turns them into
  lines of JSON and back. Neither does any I/O.
- `recorder.py` sits between gateways and sidecar; `recording_file.py` writes the lines.
- `traffic_file.py` reads and checks a file, `adaptation.py` changes what is true only of
  the recorded sidecar and its time, and `replayer.py` sends it.
"""

# Imports: console, core, host_clock, text.
# Never: sqlite3, structlog, starlette, hypercorn, anyio, cyclopts.
