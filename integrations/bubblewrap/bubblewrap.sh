#!/bin/sh
# Written by egressd init bubblewrap. Takes what bwrap takes; the network is that of
# sandbox NAME of egressd, and no other:
#
#   SCRIPT --ro-bind / / --tmpfs /run --tmpfs /tmp --dev /dev --proc /proc \
#       --bind "$PWD" "$PWD" --unshare-all --share-net --die-with-parent -- COMMAND
#
# What of the file system is shared is yours to choose. Sockets of those who act for a
# program outside (Docker, D-Bus, tmux) are ways out: leave /run and /tmp out, as above.
# egressd run --fs -- COMMAND hides them itself, and needs no bwrap.
set -eu
alone= shared=
for word; do
	case $word in
	--unshare-net | --unshare-all) alone=$word ;;
	--share-net) shared=$word ;;
	--) break ;;
	esac
done
if [ "$alone" ] && [ ! "$shared" ]; then
	echo "egressd: warning: with $alone the program has a network of its own, and egressd none of it" >&2
	echo "egressd: hint: --share-net after it; the network is apart from this machine's already" >&2
fi

# Root has no namespaces without a user namespace, once enter has given up what it takes.
[ "$(id -u)" -ne 0 ] || set -- --unshare-user "$@"

# The outer bwrap makes a network with nothing in it, over which enter needs capabilities; the
# inner one does what was asked for, and would not start with them.
exec bwrap --dev-bind / / --unshare-net --cap-add CAP_NET_ADMIN --cap-add CAP_NET_RAW --cap-add CAP_NET_BIND_SERVICE -- \
	EGRESSD enter --quiet --socket SOCKET -- \
	setpriv --ambient-caps=-all --inh-caps=-all bwrap "$@"
