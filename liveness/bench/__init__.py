"""What the sidecar does on this machine, measured from a gateway's side.

`python -m liveness.bench` starts the real server as a process of its own, drives it
over its Unix socket, and holds each figure against the promised floor:

    idle      a sidecar with nothing to do, and how soon it is ready
    logins    everyone logs in at once
    steady    single keepalives all along, while some users fall silent
    silence   everyone falls silent at once
    restart   a planned stop, then a crash, with everyone online

Lateness is reckoned on the client's own clocks, from the moment before it wrote a
user's last sign of life; the server's figures about itself are not asked.
"""
