#!/bin/sh
# Looks after one private PostgreSQL server and removes it when nobody needs it any more.
#
# usage: supervisor.sh FOLDER POSTGRES SOCKETS GRACE
#   FOLDER    the server's folder: data/, log, open, and for the n-th start pid.n and exited.n
#   POSTGRES  the program
#   SOCKETS   the folder of the socket, removed as well
#   GRACE     seconds to wait for a next user when the last one has left
#
# Standard input is a pipe that every user of the server holds open. The kernel closes their
# ends when they end, in whatever way they end, so reading to the end of the pipe is how we
# learn of it. Standard output is a file whose lock says that this process lives; nothing is
# written to it.

folder=$1 postgres=$2 sockets=$3 grace=$4
starts=0
umask 077
# Whatever the user's search path, we need the system's programs to clear up.
PATH=${PATH:+$PATH:}/usr/bin:/bin:/usr/sbin:/sbin
cd "$folder" || exit 1
# The terminal's signals are meant for the users; when they end, so do we.
trap '' HUP INT QUIT PIPE
trap 'finish' TERM

# Runs PostgreSQL and notes its process id and, at last, its exit status.
start() {
  starts=$((starts + 1))
  (
    exec >/dev/null 3<&-
    "$postgres" -D "$folder/data" </dev/null >>"$folder/log" 2>&1 &
    echo $! >"pid.$starts"
    wait $!
    echo $? >"exited.$starts"
  ) &
}

pause() { sleep 0.05 2>/dev/null || sleep 1; }

# Asks for an immediate shutdown; a paused server must be woken to notice.
stop() {
  looks=0
  # We may be here before the process id is.
  until [ -s "pid.$starts" ] || [ $looks -ge 100 ]; do
    looks=$((looks + 1))
    pause
  done
  if [ ! -f "exited.$starts" ] && read -r pid <"pid.$starts"; then
    kill -QUIT "$pid" 2>/dev/null
    kill -CONT "$pid" 2>/dev/null
  fi
  wait
}

# Ends what a killed PostgreSQL has left running: its processes stand in the data folder.
end_orphans() {
  for process in /proc/[0-9]*; do
    if [ "$process/cwd" -ef "$folder/data" ]; then
      kill -KILL "${process#/proc/}" 2>/dev/null
    fi
  done
}

# PostgreSQL removes its shared memory when it ends in order, and cannot when it is killed. The
# seventh line of its process id file names the segment.
remove_shared_memory() {
  segment=$(sed -n '7s/^ *[0-9]* *//p' data/postmaster.pid 2>/dev/null)
  if [ -n "$segment" ] && command -v ipcrm >/dev/null; then
    ipcrm -m "$segment" 2>/dev/null
  fi
}

finish() {
  trap '' TERM
  rm -f open
  stop
  if [ -f data/postmaster.pid ]; then
    end_orphans
    remove_shared_memory
  fi
  cd / || exit 1
  tries=0
  # A process of a killed PostgreSQL may still write while we remove.
  until rm -rf "$folder" "$sockets" 2>/dev/null || [ $tries -ge 100 ]; do
    tries=$((tries + 1))
    pause
  done
  exit 0
}

serve() {
  empty=no
  while :; do
    if read -r word <&3; then
      empty=no
      if [ "$word" = start ]; then start; fi
    elif [ "$grace" -gt 0 ] && [ $empty = no ]; then
      # The last user has left; the next test program may be on its way.
      empty=yes
      sleep "$grace"
    elif [ -f open ]; then
      # Out of sight first, then a last look: who came before saw us open and left a word,
      # who comes after sees that we have closed.
      rm -f open
    else
      finish
    fi
  done
}

exec 3<&0 </dev/null
start
serve
