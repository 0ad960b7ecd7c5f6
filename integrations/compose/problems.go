package compose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/boundary"
	"go.yaml.in/yaml/v3"
)

// Problems are why egressd would not hold some services of the file, one sentence each. m describes this machine; its
// networks and volumes come from the file.
func (c *File) Problems(m *boundary.Machine, held []string) (all []string) {
	all = append(all, c.problems...)
	if why, instead := m.JudgePath(c.envPath(), false); why != "" && c.env != nil { // services get its lines
		all = append(all, fmt.Sprintf("%s: %s; %s", c.envPath(), why, instead))
	}
	all = append(all, c.differing()...)
	for _, path := range c.inputs {
		if why, instead := m.JudgePath(path, false); why != "" {
			all = append(all, fmt.Sprintf("%s is read by the file: %s; %s", path, why, instead))
		}
	}
	c.loose = m.Loose
	c.guard(held)
	closed, bad := c.networkProblems(held)
	all = append(all, bad...)
	for _, name := range append(keysIn(c.text.Networks), keysIn(c.text.Volumes)...) {
		if isOwn(name) {
			all = append(all, fmt.Sprintf("%s: a network or volume of that name would change egressd's own; give it another name", name))
		}
	}
	for i := range c.Services {
		s := &c.Services[i]
		switch {
		case isOwn(s.Name):
			all = append(all, fmt.Sprintf("%s: a service of that name would change egressd's own; give it another name", s.Name))
		case slices.Contains(held, s.Name) && !s.Shares() && "egressd-"+s.Name == outside:
			all = append(all, fmt.Sprintf("%s: its network would have the name of egressd's way out; give it another name", s.Name))
		case slices.Contains(held, s.Name):
			all = append(append(all, c.heldProblems(s, m, closed, held)...), c.swapped(s)...)
			for _, path := range c.replaceable(s, func(other string) bool { return other != s.Name && slices.Contains(held, other) }) {
				all = append(all, fmt.Sprintf("%s can put a link in the place of %s, which another service mounts: its next start, by a restart policy, mounts what that leads to; mount a folder beside it, or that of %s read-only", s.Name, path, s.Name))
			}
		default:
			all = append(all, s.replacesImage(m)...)
			for _, name := range s.Networks {
				if isOwn(name) {
					all = append(all, fmt.Sprintf("%s has the network %s, which is egressd's own", s.Name, name))
				}
			}
		}
	}
	return all
}

// differing are sentences about variables of .env that Compose could read otherwise.
func (c *File) differing() (all []string) {
	for _, name := range c.env.differing(string(c.Text), c.composed) {
		all = append(all, fmt.Sprintf("%s: readers of such files differ on the value of %s; write it in one line, without control characters, and nothing behind a closing quote", c.envPath(), name))
	}
	return all
}

// isOwn reports whether the override file may have a service, a network or a volume of that name.
func isOwn(name string) bool { return name == selfService || strings.HasPrefix(name, selfService+"-") }

// heldProblems holds a service to the table.
func (c *File) heldProblems(s *Service, m *boundary.Machine, closed, held []string) (all []string) {
	j := c.judge(s.Name)
	at := *m
	at.Networks, at.Mine = closed, append(slices.Clone(m.Mine), state)
	for _, one := range s.from {
		if !slices.Contains(held, serviceOf(one)) {
			all = append(all, fmt.Sprintf("%s has volumes_from %s, which is not held", s.Name, one))
		}
	}
	described, made := map[string]boundary.Volume{}, map[string]boundary.Volume{}
	for _, one := range s.mounted {
		mount, _ := one.(map[string]any)
		if name, _ := mount["Name"].(string); name != "" {
			described[name] = j.volume(name)
			made[name] = c.made(name, described[name])
		}
	}
	for _, p := range append(slices.Clone(s.problems), j.service.problems...) {
		all = append(all, s.Name+" "+p)
	}
	if slices.Contains(m.Names, s.container) {
		all = append(all, fmt.Sprintf("%s has container_name %s: by that name you tell a sandbox; leave it out", s.Name, s.container))
	}
	for _, with := range s.joins {
		if !slices.Contains(held, with.service) {
			all = append(all, fmt.Sprintf("%s has %s service:%s, which is not held", s.Name, with.key, with.service))
		}
	}
	if of, ok := strings.CutPrefix(s.shares, "service:"); ok && !slices.Contains(held, of) {
		all = append(all, fmt.Sprintf("%s has network_mode %s, which is not held", s.Name, s.shares))
	}
	for _, path := range s.outside(m.Workspace) {
		all = append(all, fmt.Sprintf("%s is built of %s, outside of the project: a build has the engine's network, and can send it anywhere; copy what it needs into the project", s.Name, path))
	}
	for _, at.Volumes = range []map[string]boundary.Volume{described, made} { // Compose makes one anew if it asks, and the user says yes
		for _, b := range boundary.Judge(s.description(closed), &at) {
			name := b.As("_")
			if key := s.keys[b.Field]; key != "" {
				name = strings.TrimSpace(key + " " + b.Value)
			}
			if text := fmt.Sprintf("%s has %s: %s; %s", s.Name, name, b.Why, b.Instead); !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
	}
	return append(append(all, s.replacesImage(m)...), c.takesImage(s)...)
}

// takesImage are sentences about images of others whose names a build of the service would take: whoever starts one by its name
// later would start this project's, past egressd.
func (c *File) takesImage(s *Service) (all []string) {
	if !s.builds || c.has == nil {
		return nil
	}
	for _, tag := range append([]string{cmp.Or(text(s.config["Image"]), c.Name+"-"+s.Name)}, s.tags...) {
		if !strings.Contains(tag, "$") && !c.has("image", tag) {
			all = append(all, fmt.Sprintf("%s builds an image called %s, which the engine has from elsewhere: what you start by that name later would be this project's; give it another name, or docker rmi %s", s.Name, tag, tag))
		}
	}
	return all
}

// made is a volume as the engine has it, if it has that. Else it is the volume of the file.
func (c *File) made(name string, described boundary.Volume) boundary.Volume {
	if c.volume == nil || described.Unknown {
		return described
	}
	if is, found := c.volume(cmp.Or(c.givenName(c.text.Volumes, name), c.Name+"_"+name)); found {
		return is
	}
	return described
}

// description is the service as the engine would describe its container, in egressd's networks.
func (s *Service) description(closed []string) boundary.Description {
	host := map[string]any{"CapDrop": []any{"NET_RAW"}} // the override file has it
	for field, value := range s.host {
		if field != "CapDrop" {
			host[field] = value
		}
	}
	networks := map[string]any{}
	for _, name := range s.Networks {
		if slices.Contains(closed, name) { // the others have a sentence of their own
			networks[name] = map[string]any{}
		}
	}
	if host["NetworkMode"] == nil {
		host["NetworkMode"] = ownNetwork
	}
	return boundary.Description{"HostConfig": host, "Config": s.config, "Mounts": s.guarded(), "NetworkSettings": map[string]any{"Networks": networks}}
}

// ownNetwork stands for the network that the override file gives a service.
const ownNetwork = "egressd's network"

// replacesImage reports whether a build of the service would put another image in the place of egressd's.
func (s *Service) replacesImage(m *boundary.Machine) (all []string) {
	if !s.builds {
		return nil
	}
	name, _ := s.config["Image"].(string)
	for _, tag := range append([]string{name}, s.tags...) {
		switch {
		case strings.Contains(tag, "$") || isTemplate(tag):
			all = append(all, fmt.Sprintf("%s builds an image called %s: what its variables stand for is up to Compose; write the name", s.Name, tag))
		case slices.ContainsFunc(m.Images, func(own string) bool { return tag != "" && boundary.SameRepository(tag, own) }):
			all = append(all, fmt.Sprintf("%s builds an image called %s, in the place of egressd's own; give it another name", s.Name, tag))
		}
	}
	return all
}

// networkProblems judges the networks that held services are in. closed are those that the override file closes.
func (c *File) networkProblems(held []string) (closed, problems []string) {
	closed = []string{ownNetwork}
	of := map[string]string{"default": "the file"}
	for i := range c.Services {
		for _, name := range c.Services[i].Networks {
			if slices.Contains(held, c.Services[i].Name) {
				of[name] = c.Services[i].Name
			}
		}
	}
	for name, who := range of {
		n := c.text.Networks[name]
		bad := c.networkProblem(name, resolved(&n))
		for _, p := range bad {
			problems = append(problems, fmt.Sprintf("%s has the network %s: %s", who, name, p))
		}
		if len(bad) == 0 {
			closed = append(closed, name)
		}
	}
	slices.Sort(problems)
	return closed, problems
}

func (c *File) networkProblem(name string, n *yaml.Node) (all []string) {
	switch {
	case !plainNetwork(name):
		return []string{"none can be called that"}
	case isOwn(name):
		return []string{"egressd's own networks have such names; give it another one"}
	case isNothing(n):
		return nil
	}
	j := c.judge("")
	keys := j.only("networks."+name, n, "name driver driver_opts ipam internal attachable enable_ipv4 enable_ipv6 external labels")
	value := func(key string) *yaml.Node {
		n := keys[key]
		return resolved(&n)
	}
	all = append(all, j.service.problems...)
	if n := value("external"); !isNothing(n) && n.Value != "false" {
		all = append(all, "external: it is made elsewhere, and cannot be closed from here")
	}
	if n := value("name"); !isNothing(n) {
		if text, known := j.expanded(n.Value); !known || !c.owns("network", name, text) {
			all = append(all, "name "+n.Value+": that may be the network of another project; leave the name out")
		}
	}
	if n := value("enable_ipv6"); !isNothing(n) && n.Value != "false" {
		all = append(all, "enable_ipv6 "+n.Value+": the host would have an address in it; leave it out")
	}
	if n := value("driver"); !isNothing(n) && n.Value != "bridge" {
		all = append(all, "driver "+n.Value+": egressd closes networks of the driver bridge")
	}
	for option := range named(plain(value("driver_opts"))) {
		if !isNothing(value("driver_opts")) && option != "com.docker.network.driver.mtu" {
			all = append(all, "driver_opts "+option+": egressd does not know where that leads; leave it out")
		}
	}
	if ipam := value("ipam"); !isNothing(ipam) {
		own := c.judge("")
		if driver := own.only("ipam", ipam, "driver config")["driver"]; !isNothing(&driver) && resolved(&driver).Value != "default" {
			all = append(all, "ipam.driver "+resolved(&driver).Value+": egressd knows default alone")
		}
		config := own.only("ipam", ipam, "driver config")["config"]
		for _, one := range resolved(&config).Content {
			subnet := own.only("ipam.config", resolved(one), "subnet ip_range gateway aux_addresses")["subnet"]
			all = append(all, c.subnetProblem(resolved(&subnet).Value)...)
		}
		all = append(all, own.service.problems...)
	}
	slices.Sort(all)
	return all
}

// givenName is the name that the file gives one of its networks or volumes, or "".
func (c *File) givenName(all map[string]yaml.Node, key string) string {
	n := all[key]
	var keys map[string]yaml.Node
	if isNothing(&n) || resolved(&n).Decode(&keys) != nil {
		return ""
	}
	name := keys["name"]
	text, _ := c.judge("").expanded(resolved(&name).Value)
	return text
}

// subnetProblem is about addresses that this host reaches elsewhere: a network that has these gets what the host sends there.
func (c *File) subnetProblem(text string) []string {
	if text == "" {
		return nil
	}
	subnet, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return []string{"ipam.config.subnet " + text + ": write a prefix, such as 172.30.0.0/24"}
	case !subnet.Addr().IsPrivate():
		return []string{"ipam.config.subnet " + text + ": these addresses are others', and what this host sends there would arrive at a container; take a private prefix, such as 172.30.0.0/24"}
	}
	for _, taken := range c.routes {
		if taken.Overlaps(subnet) {
			return []string{"ipam.config.subnet " + text + ": this host reaches " + taken.String() + " elsewhere, and what it sends there would arrive at a container; take another one"}
		}
	}
	return nil
}
