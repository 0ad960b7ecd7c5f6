package lab

// Addresses of an [World.Office]: towards the gateway, and towards the internet.
const (
	OfficeIPv4   = "10.96.0.1"
	OfficeFacing = "10.95.0.1"
)

// officeCatchAll is catchAll for the office's link.
const officeCatchAll = `
table inet office {
	chain prerouting {
		type filter hook prerouting priority -150; policy accept;
		iifname != "of1" accept
		tcp dport 53 ip daddr 9.9.9.53 accept
		ip daddr 93.184.216.99 reject with tcp reset
		ip daddr 93.184.216.97 drop
		meta nfproto ipv4 meta l4proto tcp tproxy ip to :4 accept
	}
}
`

// Office makes a host for upstream proxies: the gateway and the internet have a link to it each, and it
// forwards nothing. A world has one at most; the caller does not close it.
func (w *World) Office() (*Net, error) {
	n, err := newNet("office")
	if err != nil {
		return nil, err
	}
	w.office = n
	if err := quiet(n); err != nil {
		return nil, err
	}
	if err := w.Gateway.ip("link add name gw3 type veth peer name of0 netns "+n.path, "addr add 10.96.0.2/24 dev gw3", "link set gw3 up"); err != nil {
		return nil, err
	}
	if err := w.Internet.ip("link add name of1 type veth peer name of1 netns "+n.path, "addr add 10.95.0.2/30 dev of1", "link set of1 up"); err != nil {
		return nil, err
	}
	if err := w.Internet.nft(officeCatchAll); err != nil {
		return nil, err
	}
	return n, n.ip(
		"link set lo up",
		"addr add "+OfficeIPv4+"/24 dev of0",
		"link set of0 up",
		"addr add "+OfficeFacing+"/30 dev of1",
		"link set of1 up",
		"route add default via 10.95.0.2",
	)
}
