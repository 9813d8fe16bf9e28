# To be sourced: installs Debian's packages where that is possible without asking.

apt_command() { echo "apt-get install -y --no-install-recommends $*"; }

# Whether it did. A word for the user comes first: it may take minutes.
apt_install() {
  local sudo
  command -v apt-get >/dev/null 2>&1 || return 1
  if [ "$(id -u)" = 0 ]; then sudo=""; elif sudo -n true 2>/dev/null; then sudo="sudo -n"; else return 1; fi
  echo "Installing $* with apt-get."
  $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo $(apt_command "$@") >/dev/null
}
