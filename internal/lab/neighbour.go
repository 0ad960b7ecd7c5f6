package lab

// NeighbourIPv4 is the address of a [World.Neighbour].
const NeighbourIPv4 = "10.97.0.1"

// Neighbour makes a second sandbox, on a link of its own: it reaches the
// gateway's addresses and nothing else. A world has one at most; the caller
// does not close it.
func (w *World) Neighbour() (*Net, error) {
	n, err := newNet("neighbour")
	if err != nil {
		return nil, err
	}
	w.neighbour = n
	if err := quiet(n); err != nil {
		return nil, err
	}
	if err := w.Gateway.ip("link add name gw2 type veth peer name sbx1 netns "+n.path, "addr add 10.97.0.2/24 dev gw2", "link set gw2 up"); err != nil {
		return nil, err
	}
	return n, n.ip(
		"link set lo up",
		"addr add "+NeighbourIPv4+"/24 dev sbx1",
		"link set sbx1 up",
		"route add "+GatewayIPv4+" via 10.97.0.2",
	)
}
