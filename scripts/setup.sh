#!/usr/bin/env bash
# Installs what the tests run that this machine does not have yet. Says what
# is missing, and fails, where it may not install. "commands" and "modules" are
# its halves, which may run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A package=(
	[curl]=curl [wget]=wget [git]=git [git-lfs]=git-lfs [gh]=gh [node]=nodejs [npm]=npm [python3]=python3 [pip]=python3-pip
	[dns2tcpc]=dns2tcp [iodine]=iodine [socat]=socat [dig]=bind9-dnsutils [nsenter]=util-linux
	[ip]=iproute2 [nft]=nftables [unshare]=util-linux [setpriv]=util-linux [bwrap]=bubblewrap [strace]=strace
	[systemd-analyze]=systemd
	[dockerd]=docker.io [docker]=docker.io [busybox]=busybox-static [iptables]=iptables [docker-compose]=docker-compose [podman]=podman
	[sshd]=openssh-server [ssh]=openssh-client [gpg-agent]=gpg-agent [gpg-connect-agent]=gpgconf
	[zsh]=zsh [ksh]=ksh [mksh]=mksh [fish]=fish [sudo]=sudo [crontab]=cron [atq]=at [setfattr]=attr [setfacl]=acl [rsync]=rsync [fakeroot]=fakeroot
	[inotifywait]=inotify-tools [gio]=libglib2.0-bin [ping]=iputils-ping [nc]=netcat-openbsd [gdb]=gdb [lsof]=lsof [ps]=procps
	[systemd-run]=systemd [dbus-run-session]=dbus [gpg]=gpg [yarnpkg]=yarnpkg [rustc]=rustc [cargo]=cargo
	[java]=default-jdk-headless [mvn]=maven [make]=make [gcc]=gcc [cmake]=cmake [ninja]=ninja-build [vim.tiny]=vim-tiny [ed]=ed [patch]=patch [less]=less [nano]=nano [expect]=expect
	[tmux]=tmux [screen]=screen [man]=man-db [parallel]=parallel [entr]=entr [ruby]=ruby [php]=php-cli [perl]=perl [lua5.4]=lua5.4
	[pg_ctlcluster]=postgresql [redis-server]=redis-server [redis-cli]=redis-tools [sqlite3]=sqlite3
	[aws]=awscli [openssl]=openssl [nginx]=nginx [squid]=squid [redsocks]=redsocks [chromium]=chromium [certutil]=libnss3-tools
)
[ "$(id -u)" -eq 0 ] || package[newuidmap]=uidmap # by which the tests have a second user
missing=()
for command in "${!package[@]}"; do
	found=$(command -v "$command") || found=/usr/sbin/$command
	# What lies in the home folder is not there for the users of the tests.
	[ -x "$found" ] && [[ "$found" != "${HOME:-/root}"/* || -x "/usr/bin/$command" ]] || missing+=("${package[$command]}")
done
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
[ -s /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

# again runs what fetches something over the network, up to three times.
again() {
	local wait
	for wait in 5 20; do
		"$@" && return
		echo "setup: once more, in $wait seconds: $*" >&2
		sleep "$wait"
	done
	"$@"
}

# What tests run of npm, in the version and with the digest that stand in the lock file.
commands_of_npm() {
	cd tools/npm
	[ node_modules/.package-lock.json -nt package-lock.json ] || again npm ci --ignore-scripts --no-audit --no-fund --silent
}

# What tests and their tools are made of. The go command asks a proxy of modules once.
modules() {
	again go list -deps -test ./... >/dev/null
	again go list -modfile=tools/go.mod -deps honnef.co/go/tools/cmd/staticcheck github.com/rhysd/actionlint/cmd/actionlint golang.org/x/tools/cmd/deadcode github.com/summerwind/h2spec/cmd/h2spec >/dev/null
	(cd tools/compose && again go list -deps tool >/dev/null)
	(cd bench && again go list -deps -test ./... >/dev/null)
	(cd examples/embed-goproxy && again go list -deps -test ./... >/dev/null)
}

# Compose 2 and BuildKit's client, which the system has no packages of. Go leaves alone what is there already.
plugins() {
	local module name package variable
	cd tools/compose
	while read -r name module package variable; do
		CGO_ENABLED=0 go build -trimpath -ldflags="-s -w -X $variable=$(go list -m -f '{{.Version}}' "$module")" -o "../../build/plugins/$name" "$module/$package"
	done <<-'END'
		docker-compose github.com/docker/compose/v2 cmd github.com/docker/compose/v2/internal.Version
		docker-buildx github.com/docker/buildx cmd/buildx github.com/docker/buildx/version.Version
	END
}

# What is run, from packages of the system and from npm.
commands() {
	if [ "${#missing[@]}" -eq 0 ]; then
		(commands_of_npm)
		return
	fi
	if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
		echo "setup: missing: ${missing[*]}" >&2
		echo "setup: hint: as root, apt-get install ${missing[*]}" >&2
		exit 1
	fi
	# The tests start an engine of their own; the one of the package is not to.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
	fi
	export DEBIAN_FRONTEND=noninteractive
	# A mirror that hiccups is asked again, and whoever else installs something waited for.
	local patient=(-o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
	again apt-get "${patient[@]}" update -qq
	again apt-get "${patient[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
	(commands_of_npm)
}

case ${1:-all} in
commands) commands ;;
modules) modules ;;
plugins) (plugins) ;;
all) commands; modules; (plugins) ;;
*)
	echo "usage: setup.sh [commands|modules|plugins]" >&2
	exit 2
	;;
esac
