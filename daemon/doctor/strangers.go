package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/sidecar"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/capture"
	"github.com/egressd/egressd/sandbox/containers"
)

// A stranger is another container in a network of the container, or in its network namespace. Nobody judged it for that.
type stranger struct {
	name, network string // network is empty if it has the namespace itself
	open          string // a network of it that leads out
	breach        *boundary.Breach
}

// egressd returns the ID of egressd's own container in a network that egressd init made, or "". A label proves nothing,
// since any image may have it. The address does: egressd's container has it, and the engine gives it to nobody else.
func (n *dockerNetwork) egressd() string {
	if len(n.IPAM.Config) != 1 || !strings.HasPrefix(n.Options[sidecar.OptionBridge], sidecar.BridgePrefix) {
		return ""
	}
	self := sidecar.SandboxNetwork{Subnet: n.IPAM.Config[0].Subnet}.Self()
	for id, c := range n.Containers {
		if at, err := netip.ParsePrefix(c.IPv4Address); err == nil && at.Addr() == self {
			return id
		}
	}
	return ""
}

// others are the strangers, as the engine describes them now.
func (l *containerLook) others(socket string, cfg *config.Config) (all []stranger, err error) {
	seen := map[string]string{} // the network by the ID of the container
	for _, n := range l.Networks {
		if !n.Internal {
			continue // that the container is in it is a finding
		}
		own := n.egressd()
		for id := range n.Containers {
			if id != own && id != l.Container.ID {
				seen[id] = n.Name
			}
		}
	}
	var running []struct {
		ID         string `json:"Id"`
		HostConfig struct{ NetworkMode string }
	}
	if err := containers.Ask(socket, "/containers/json", &running); err != nil {
		return nil, err
	}
	for _, r := range running {
		if r.HostConfig.NetworkMode == "container:"+l.Container.ID {
			seen[r.ID] = ""
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		s, err := lookAtStranger(socket, id, seen[id], cfg)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func lookAtStranger(socket, id, network string, cfg *config.Config) (s stranger, err error) {
	seen, err := containers.Inspect(context.Background(), socket, id)
	if err != nil {
		return s, fmt.Errorf("container %s, which is in its network: %w", id, err)
	}
	look := containerLook{}
	if err := seen.Container.Into(&look.Container); err != nil {
		return s, err
	}
	s = stranger{name: strings.TrimPrefix(look.Container.Name, "/"), network: network}
	if err := look.askNetworks(socket); err != nil {
		return s, err
	}
	if open := look.open(); len(open) > 0 {
		s.open = open[0]
		return s, nil
	}
	m := hostpaths.Machine("", socket, cfg)
	seen.On(m)
	m.Networks = append(look.closed(), look.Container.HostConfig.NetworkMode)
	for _, b := range boundary.Judge(seen.Container, m) {
		s.breach = &b
		break
	}
	return s, nil
}

// neighbours is about the strangers: one that leads out carries what this container sends.
func (l *containerLook) neighbours() Finding {
	const check = "neighbours"
	var names []string
	for _, s := range l.strangers {
		where, leave := "is in the network "+s.network+", too", "docker network disconnect "+s.network+" "+s.name
		if s.network == "" {
			where, leave = "has the network of this container", "docker rm -f "+s.name
		}
		switch {
		case s.open != "":
			return Finding{check, s.name + " " + where + ", and in " + s.open + ", which leads out: what this container sends to it gets out past egressd", leave}
		case s.breach != nil:
			return Finding{check, s.name + " " + where + ", with " + s.breach.As("--") + ": " + s.breach.Why, leave}
		}
		names = append(names, s.name)
	}
	if len(names) == 0 {
		return Finding{Check: check, Says: "none"}
	}
	return Finding{Check: check, Says: "it reaches " + strings.Join(names, ", ") + ", without a record; none leads out"}
}

// attached is about a container without a network of the engine's.
func (l *containerLook) attached() Finding {
	const check = "network"
	if len(l.strangers) > 0 {
		if f := l.neighbours(); f.Fix != "" {
			return f
		}
	}
	switch {
	case l.Container.State.Pid == 0:
		return Finding{check, "none of Docker's, and it does not run", "docker start NAME, and egressd attach NAME"}
	case !l.serves:
		return Finding{check, "none of Docker's, and egressd does not serve it: it reaches nothing, and nothing of that is recorded", "egressd attach NAME as root, or start it by egressd docker run"}
	}
	return Finding{Check: check, Says: "none of Docker's; something listens on its loopback where egressd does"}
}

// servesLoopback reports whether somebody listens in the network of a process where egressd does: at the proxy of
// egressd enter, or for captured connections.
func servesLoopback(pid int) bool {
	if pid == 0 {
		return false
	}
	at, err := listening("/proc/" + strconv.Itoa(pid) + "/net")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return false
	}
	for a := range at {
		if a.Port() == attach.ProxyPort && a.Addr().IsLoopback() || a.Port() == capture.CapturePort {
			return true
		}
	}
	return false
}
