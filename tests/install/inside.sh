# Runs as a service on a machine where the .deb was just installed (scripts/package-test), and does what an operator would do.
# The last line is "all holds", or the failure.
set -u
KEY=sk-inside-0123456789
URL=http://127.0.0.1:8080
MODEL=SmolLM2-135M-Instruct.Q4_1.gguf
UNIT=/etc/systemd/system/tandemd.service.d

fail() {
  echo "FAILED: $*"
  systemctl status --no-pager -l tandemd.service
  journalctl --no-pager -q -u tandemd.service -n 30
  exit 1
}
# must WHAT COMMAND...
must() {
  local what=$1
  shift
  "$@" >/tmp/out 2>&1 || { cat /tmp/out; fail "$what"; }
  echo "ok: $what"
}
# soon WHAT COMMAND...: must succeed within half a minute
soon() {
  local what=$1 i
  shift
  for i in $(seq 300); do
    if "$@" >/tmp/out 2>&1; then
      echo "ok: $what"
      return 0
    fi
    sleep 0.1
  done
  cat /tmp/out
  fail "$what"
}
show() { systemctl show -P "$1" tandemd.service; }
code() { curl -s -o /tmp/body -m 60 -w '%{http_code}' "$@"; }
is() { [ "$1" = "$2" ] || { echo "'$1' is not '$2'"; return 1; }; }
answers() {
  is "$(code -H "authorization: Bearer $KEY" -H 'content-type: application/json' "$URL/v1/completions" \
    -d '{"prompt":"The capital of France is","max_tokens":4,"temperature":0}')" 200 && grep -q '"text":' /tmp/body
}
grows() { [ "$(show NRestarts)" -gt "$1" ]; }

# ---- installed files ----
must "the service is not enabled by itself" is "$(systemctl is-enabled tandemd.service)" disabled
must "the user is there" getent passwd tandem
for page in 'man8/tandemd.8' 'man5/tandem.conf.5' 'man1/tandem-bench.1' 'man1/tandem-plan.1' 'man1/tandem-pull.1'; do
  must "man page $page" gzip -t "/usr/share/man/$page.gz"
done
for program in tandemd tandem-bench tandem-plan tandem-pull; do
  must "$program runs" "$program" --help
  must "bash completes $program" bash -c ". /usr/share/bash-completion/completions/$program && complete -p $program"
done
must "systemd takes the units" systemd-analyze verify /usr/lib/systemd/system/tandemd.service /usr/lib/systemd/system/tandemd.socket
score=$(systemd-analyze security --no-pager tandemd.service | sed -n 's/.*Overall exposure level for tandemd.service: \([0-9.]*\).*/\1/p')
must "exposure $score is at most 1.3" awk "BEGIN { exit !($score > 0 && $score <= 1.3) }"

# ---- without a model: refused once, and not restarted repeatedly ----
must "the service cannot start without its model" bash -c '! systemctl start tandemd.service'
must "its exit code says why" is "$(show ExecMainStatus)" 65
must "it was not started again" is "$(show NRestarts)" 0
systemctl stop tandemd.socket
systemctl reset-failed

# ---- an operator's steps ----
mv "/$MODEL" /var/lib/tandem/models/
must "tandem-pull lists it" bash -c "tandem-pull --list | grep -q '^$MODEL'"
sed -i "s|^model = .*|model = $MODEL|; s|^# \(api_key_file = /run\)|\1|" /etc/tandem/tandem.conf
echo "kv_bytes = 268435456" >>/etc/tandem/tandem.conf
(umask 077 && echo "$KEY" >/etc/tandem/credentials/api-keys)
mkdir -p $UNIT
# to keep the test short, it starts the service more often than the five times in 10 s that systemd allows
printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nWatchdogSec=3s\nRestartSec=200ms\n' >$UNIT/test.conf
systemctl daemon-reload
must "the units are enabled" systemctl enable --now tandemd.socket
must "the first client starts the daemon, waits and is answered" answers
must "it is notified as ready" is "$(show ActiveState)/$(show Type)" active/notify
must "without its key a client is refused" is "$(code "$URL/v1/models")" 401
must "it runs as its user" is "$(stat -c %U "/proc/$(show MainPID)")" tandem
must "the credential is its own" is "$(stat -c %a /run/credentials/tandemd.service 2>/dev/null | cut -c3)" 0
soon "it kept what it measured" bash -c 'ls /var/cache/tandem/* || systemctl restart tandemd.service'
soon "it answers" answers

must "it reads its options again" systemctl reload tandemd.service
soon "and says so" bash -c 'journalctl -q -u tandemd.service | grep -q "SIGHUP: options and keys are read again"'
must "reloading is no restart" is "$(show ActiveState)/$(show NRestarts)" active/0

# ---- no connection is refused during restarts ----
(
  for i in $(seq 12); do answers && echo yes || echo no; done >/tmp/during
) &
for i in 1 2; do
  sleep 0.5
  must "restart $i" systemctl restart tandemd.service
done
wait
must "no client was refused meanwhile" is "$(sort /tmp/during | uniq -c | tr -s ' ')" " 12 yes"

# ---- faults ----
n=$(show NRestarts)
kill -9 "$(show MainPID)"
soon "killed, it is started again" grows "$n"
soon "it answers" answers
n=$(show NRestarts)
kill -STOP "$(show MainPID)"
soon "stopped, the watchdog starts it again" grows "$n"
soon "it answers" answers
echo "no_such_option = 1" >>/etc/tandem/tandem.conf
must "a bad options file is refused" bash -c '! systemctl restart tandemd.service'
must "its exit code says why" is "$(show ExecMainStatus)" 64
sed -i /no_such_option/d /etc/tandem/tandem.conf
systemctl reset-failed
must "it stops in order" bash -c 'systemctl restart tandemd.service && systemctl stop tandemd.socket tandemd.service'
must "its exit code is 0" is "$(show Result)/$(show ExecMainStatus)" success/0

# ---- removed ----
rm -r $UNIT "/var/lib/tandem/models/$MODEL"
must "apt purges it" env DEBIAN_FRONTEND=noninteractive apt-get -q purge -y tandem
rm -f /etc/tandem/credentials/api-keys
must "nothing stays" bash -c '! ls -d /usr/bin/tandem* /usr/lib/systemd/system/tandem* /usr/share/man/man?/tandem* /usr/share/doc/tandem /var/cache/tandem'
echo "all holds"
