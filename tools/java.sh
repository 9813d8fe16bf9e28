#!/usr/bin/env bash
# Checks for Java 17 or newer, which Spark needs; installs it where that is possible without asking.
set -u
. "$(dirname "$0")/apt.sh"

java_command() { if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else echo java; fi; }

java_major() {
  local java; java=$(java_command)
  command -v "$java" >/dev/null 2>&1 || { echo 0; return; }
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

major=$(java_major)
[ "${major:-0}" -ge 17 ] && exit 0

package=openjdk-17-jre-headless
if [ -z "${JAVA_HOME:-}" ]; then
  apt_install "$package" || true
  [ "$(java_major)" -ge 17 ] && exit 0
fi
echo "Spark needs Java 17 or newer; found: ${major:-0} (0: none; JAVA_HOME=${JAVA_HOME:-unset})." >&2
echo "Install it and run make again, for example:  sudo $(apt_command "$package")" >&2
exit 1
