#!/usr/bin/env bash
# Checks for Java 17 or newer, which Spark needs; installs it where that is possible without asking.
set -u

java_command() { if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else echo java; fi; }

java_major() {
  local java; java=$(java_command)
  command -v "$java" >/dev/null 2>&1 || { echo 0; return; }
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

major=$(java_major)
[ "${major:-0}" -ge 17 ] && exit 0

install="apt-get install -y --no-install-recommends openjdk-17-jre-headless"
if command -v apt-get >/dev/null 2>&1 && [ -z "${JAVA_HOME:-}" ]; then
  if [ "$(id -u)" = 0 ]; then sudo=""; elif sudo -n true 2>/dev/null; then sudo="sudo -n"; else sudo=none; fi
  if [ "$sudo" != none ]; then
    echo "Java 17 or newer was not found; installing it with apt-get."
    $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo $install >/dev/null || true
    [ "$(java_major)" -ge 17 ] && exit 0
  fi
fi
echo "Spark needs Java 17 or newer; found: ${major:-0} (0: none; JAVA_HOME=${JAVA_HOME:-unset})." >&2
echo "Install it and run make again, for example:  sudo $install" >&2
exit 1
