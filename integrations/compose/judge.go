package compose

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/hostfiles"
	"go.yaml.in/yaml/v3"
)

// A composeJudge describes a service as the engine would, for the table of package boundary. A key that it cannot
// describe is a problem, because a key of a later Compose may lead out.
type composeJudge struct {
	of      *File
	file    *composeText
	service Service
	dir     string // of the compose file
	home    string
	env     envFile
	environ func(name string) (value string, is bool) // of the user
}

// A sharedWith is a service whose namespace of some kind another one has.
type sharedWith struct{ key, service string }

// harmlessKeys are keys of a service that take it nowhere, whatever they say.
const harmlessKeys = `attach blkio_config command cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime cpu_shares cpus cpuset
	depends_on dns dns_opt dns_search domainname entrypoint environment expose extra_hosts group_add healthcheck hostname init
	mac_address mem_limit mem_reservation mem_swappiness memswap_limit oom_kill_disable oom_score_adj pids_limit
	platform ports profiles pull_policy read_only restart scale shm_size stdin_open stop_grace_period stop_signal storage_opt tmpfs tty ulimits user working_dir`

// engineFields are keys whose value is that of a field of the engine's HostConfig.
func engineFields() map[string]string {
	return map[string]string{
		"privileged": "Privileged", "cap_add": "CapAdd", "cap_drop": "CapDrop", "security_opt": "SecurityOpt", "pid": "PidMode", "ipc": "IpcMode", "uts": "UTSMode",
		"userns_mode": "UsernsMode", "cgroup": "CgroupnsMode", "runtime": "Runtime", "isolation": "Isolation", "cgroup_parent": "CgroupParent", "annotations": "Annotations",
		"devices": "Devices", "device_cgroup_rules": "DeviceCgroupRules", "gpus": "DeviceRequests", "volumes_from": "VolumesFrom", "volume_driver": "VolumeDriver",
		"links": "Links", "external_links": "Links", "network_mode": "NetworkMode", "sysctls": "Sysctls",
	}
}

// describe reads the keys of a service.
func (j *composeJudge) describe(keys map[string]yaml.Node) Service {
	s := &j.service
	s.host, s.config, s.keys = map[string]any{}, map[string]any{}, map[string]string{}
	value := func(key string) *yaml.Node {
		n := keys[key]
		return resolved(&n)
	}
	for _, key := range keysIn(keys) {
		n := value(key)
		field, ofEngine := engineFields()[key]
		j.spills(key, n)
		switch {
		case isNothing(n) || slices.Contains(strings.Fields(harmlessKeys), key) || strings.HasPrefix(key, "x-"):
		case (key == "pid" || key == "ipc") && strings.HasPrefix(n.Value, "service:"):
			s.joins = append(s.joins, sharedWith{key, strings.TrimPrefix(n.Value, "service:")})
		case key == "network_mode" && strings.HasPrefix(n.Value, "service:"):
		case key == "links" && j.within(n): // names of services, which the networks lead to or do not
		case key == "volumes_from" && j.within(n) && !slices.ContainsFunc(valuesOf(n), ofContainer):
			s.from = valuesOf(n)
		case ofEngine:
			j.field(key, field, plain(n))
		case key == "image":
			s.config["Image"] = n.Value
		case key == "labels":
			j.labels(n)
		case key == "container_name":
			j.containerName(n.Value)
		case key == "build":
			j.build(n)
		case key == "env_file":
			j.envFiles(n)
		case key == "logging":
			j.logging(n)
		case key == "volumes":
			j.volumes(n)
		case key == "configs":
			j.given(n, "configs", j.file.Configs)
		case key == "secrets":
			j.given(n, "secrets", j.file.Secrets)
		case key == "networks":
			j.networks(n)
		case key == "deploy":
			j.deploy(n)
		case key == "develop":
			j.develop(n)
		case key == "post_start" || key == "pre_stop":
			j.hooks(key, n)
		case key == "extends":
			j.problem("has extends: only Compose 2 can say what that comes to, and it is not here; write it into this service, by an anchor (x-base: &base) and <<: *base")
		case key == "label_file":
			j.problem("has label_file: only Compose 2 can say what labels that gives, and it is not here; write them as labels")
		default:
			j.problem("has %s, which egressd does not know, nor whether it leads out", key)
		}
	}
	j.replicas(value("scale").Value)
	s.Networks, s.shares, s.ports = keysOf(value("networks")), value("network_mode").Value, len(value("ports").Content) > 0
	return *s
}

// within reports whether a list has services of the file, as SERVICE or SERVICE:MORE.
func (j *composeJudge) within(n *yaml.Node) bool {
	return !slices.ContainsFunc(valuesOf(n), func(one string) bool {
		_, is := j.file.Services[serviceOf(one)]
		return !is
	})
}

// serviceOf is the service of an entry of links or volumes_from, which older Compose prints as service:NAME.
func serviceOf(entry string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(entry, "service:"), ":")
	return name
}

// ofContainer reports whether an entry of volumes_from names a container of the engine, not a service. Compose reads it so where
// a service is called container, too.
func ofContainer(entry string) bool { return strings.HasPrefix(entry, "container:") }

// field gives a field of HostConfig a value. Sysctls and annotations may be lists of NAME=VALUE.
func (j *composeJudge) field(key, field string, value any) {
	if field == "Sysctls" || field == "Annotations" {
		value = named(value)
	}
	if before, ok := j.service.host[field].([]any); ok {
		if more, ok := value.([]any); ok {
			value = append(before, more...)
		}
	}
	j.service.host[field], j.service.keys["HostConfig."+field] = value, key
}

// plain is a value as JSON would have it.
func plain(n *yaml.Node) any {
	var value any
	if n.Decode(&value) != nil {
		return n.Value
	}
	switch v := value.(type) {
	case nil, bool, string, []any, map[string]any:
		return value
	default:
		return fmt.Sprint(v)
	}
}

// named is a mapping, or a list of NAME=VALUE, as a mapping.
func named(value any) map[string]any {
	all := map[string]any{}
	switch v := value.(type) {
	case map[string]any:
		return v
	case []any:
		for _, one := range v {
			name, is, _ := strings.Cut(fmt.Sprint(one), "=")
			all[name] = is
		}
	default:
		all[fmt.Sprint(v)] = ""
	}
	return all
}

func keysIn(keys map[string]yaml.Node) []string { return slices.Sorted(maps.Keys(keys)) }

func (j *composeJudge) problem(text string, a ...any) {
	j.service.problems = append(j.service.problems, fmt.Sprintf(text, a...))
}

// only refuses keys of a mapping that are not among those.
func (j *composeJudge) only(of string, n *yaml.Node, known string) map[string]yaml.Node {
	var keys map[string]yaml.Node
	if err := n.Decode(&keys); err != nil {
		j.problem("has %s that cannot be read: %v", of, err)
		return nil
	}
	for _, key := range keysIn(keys) {
		if one := keys[key]; !isNothing(&one) && !strings.HasPrefix(key, "x-") && !slices.Contains(strings.Fields(known), key) {
			j.problem("has %s.%s, which egressd does not know, nor whether it leads out", of, key)
		}
	}
	return keys
}

// labels may not be known by a variable alone.
func (j *composeJudge) labels(n *yaml.Node) {
	all := named(plain(n))
	for name := range all {
		if strings.Contains(name, "$") {
			j.problem("has labels %s: what its variables stand for is up to Compose; write the name", name)
		}
	}
	j.service.config["Labels"] = all
}

func (j *composeJudge) containerName(name string) {
	text, known := j.expanded(name)
	if text = strings.TrimPrefix(text, "/"); !known || isOwn(text) { // the engine takes both for one name
		j.problem("has container_name %s: egressd's own containers have such names; leave it out", name)
	} else {
		j.service.container = text
	}
}

func (j *composeJudge) logging(n *yaml.Node) {
	keys := j.only("logging", n, "driver options")
	log := map[string]any{}
	if driver := keys["driver"]; !isNothing(&driver) {
		log["Type"] = resolved(&driver).Value
	}
	if options := keys["options"]; !isNothing(&options) {
		log["Config"] = named(plain(resolved(&options)))
	}
	j.service.host["LogConfig"] = log
}

// networks are names of networks, with settings of the service in them.
func (j *composeJudge) networks(n *yaml.Node) {
	for _, name := range keysOf(n) {
		var all map[string]yaml.Node
		if n.Kind != yaml.MappingNode || n.Decode(&all) != nil {
			continue
		}
		if one := all[name]; !isNothing(&one) {
			j.only("networks."+name, resolved(&one), "aliases ipv4_address ipv6_address link_local_ips mac_address priority gw_priority")
		}
	}
}

func (j *composeJudge) replicas(count string) {
	if count != "" && count != "0" && count != "1" {
		j.service.replicas = count
	}
}

// deploy has limits, which are harmless, and devices.
func (j *composeJudge) deploy(n *yaml.Node) {
	const harmless = "mode replicas endpoint_mode labels restart_policy update_config rollback_config placement"
	keys := j.only("deploy", n, harmless+" resources")
	replicas := keys["replicas"]
	j.replicas(resolved(&replicas).Value)
	resources := keys["resources"]
	if isNothing(&resources) {
		return
	}
	keys = j.only("deploy.resources", resolved(&resources), "limits reservations")
	reserved := keys["reservations"]
	if isNothing(&reserved) {
		return
	}
	keys = j.only("deploy.resources.reservations", resolved(&reserved), "cpus memory pids devices")
	if devices := keys["devices"]; !isNothing(&devices) {
		j.field("deploy.resources.reservations.devices", "DeviceRequests", plain(resolved(&devices)))
	}
}

// develop copies files of this machine into the container, for docker compose watch.
func (j *composeJudge) develop(n *yaml.Node) {
	keys := j.only("develop", n, "watch")
	watch := keys["watch"]
	for _, one := range resolved(&watch).Content {
		rule := j.only("develop.watch", resolved(one), "path action target ignore include initial_sync exec")
		path, exec, action := rule["path"], rule["exec"], rule["action"]
		j.mount(resolved(&path).Value, "", mountFlags{})
		if text, known := j.expanded(resolved(&path).Value); known && !slices.Contains([]string{"rebuild", "restart"}, resolved(&action).Value) {
			j.service.copied = append(j.service.copied, j.absolute(text))
		}
		if !isNothing(&exec) {
			j.hook("develop.watch.exec", resolved(&exec))
		}
	}
}

// hooks are commands that Compose has the engine start in the container.
func (j *composeJudge) hooks(key string, n *yaml.Node) {
	for _, one := range n.Content {
		j.hook(key, resolved(one))
	}
}

func (j *composeJudge) hook(key string, n *yaml.Node) {
	keys := j.only(key, n, "command user privileged working_dir environment")
	if p := keys["privileged"]; !isNothing(&p) && resolved(&p).Value != "false" {
		j.problem("has %s that is privileged", key)
	}
}

// given are configs or secrets of a service: of those that are files, the files are mounted.
func (j *composeJudge) given(n *yaml.Node, of string, all map[string]yaml.Node) {
	for _, one := range n.Content {
		name := resolved(one).Value
		if resolved(one).Kind == yaml.MappingNode {
			source := j.only(of, resolved(one), "source target uid gid mode")["source"]
			name = resolved(&source).Value
		}
		if strings.Contains(name, "$") {
			j.unknownMount(name)
			continue
		}
		if given := all[name]; !isNothing(&given) {
			keys := j.only(of+"."+name, resolved(&given), "file content environment name labels")
			if file := keys["file"]; !isNothing(&file) {
				j.mount(resolved(&file).Value, "/run/"+of+"/"+name, mountFlags{})
			}
		}
	}
}

func (j *composeJudge) volumes(n *yaml.Node) {
	for _, one := range n.Content {
		one = resolved(one)
		if one.Kind == yaml.MappingNode {
			j.longVolume(one)
			continue
		}
		text, known := j.expanded(one.Value)
		parts := strings.Split(text, ":")
		switch {
		case !known:
			j.unknownMount(one.Value)
		case len(parts) < 2: // a new volume
		case len(parts) > 3:
			j.problem("has volumes %s, which egressd cannot read; write {type: bind, source: …, target: …}", one.Value)
		case strings.ContainsAny(parts[0][:min(1, len(parts[0]))], "./~"):
			j.mount(parts[0], parts[1], readFlags(parts[2:]))
		default:
			j.named(parts[0], parts[1], readFlags(parts[2:]).propagation)
		}
	}
}

// mountFlags say how something is mounted. relabel is z or Z, by which the engine changes labels of SELinux.
type mountFlags struct {
	writable             bool
	propagation, relabel string
}

// readFlags reads the third part of a short volume. A flag that it does not know counts as propagation, which the
// table refuses.
func readFlags(flags []string) mountFlags {
	how := mountFlags{writable: true}
	for _, flag := range flags {
		for one := range strings.SplitSeq(flag, ",") {
			switch one {
			case "", "rw", "nocopy", "cached", "delegated", "consistent":
			case "z", "Z":
				how.relabel = one
			case "ro":
				how.writable = false
			default:
				how.propagation = one
			}
		}
	}
	return how
}

func (j *composeJudge) longVolume(n *yaml.Node) {
	keys := j.only("volumes", n, "type source target read_only consistency bind volume tmpfs image")
	value := func(key string) string {
		n := keys[key]
		return resolved(&n).Value
	}
	how := mountFlags{writable: value("read_only") != "true"}
	if bind := keys["bind"]; !isNothing(&bind) {
		bound := j.only("volumes.bind", resolved(&bind), "propagation create_host_path selinux recursive")
		propagation, relabel := bound["propagation"], bound["selinux"]
		how.propagation, how.relabel = resolved(&propagation).Value, resolved(&relabel).Value
	}
	if volume := keys["volume"]; !isNothing(&volume) {
		j.only("volumes.volume", resolved(&volume), "nocopy subpath labels")
	}
	switch kind := value("type"); kind {
	case "bind":
		j.mount(value("source"), value("target"), how)
	case "volume":
		j.named(value("source"), value("target"), how.propagation)
	case "tmpfs", "image":
	default:
		j.service.mounted = append(j.service.mounted, map[string]any{"Type": kind, "Source": value("source"), "Destination": value("target")})
	}
}

// named is a named volume, whose driver and options the table judges.
func (j *composeJudge) named(name, target, propagation string) {
	if strings.Contains(name+target, "$") {
		j.unknownMount(name + ":" + target)
		return
	}
	j.service.mounted = append(j.service.mounted, map[string]any{"Type": "volume", "Name": name, "Destination": target, "RW": true, "Propagation": propagation})
	for _, value := range j.volume(name).Options {
		if filepath.IsAbs(value) {
			j.service.mounts, j.service.reads = append(j.service.mounts, value), append(j.service.reads, value)
		}
	}
}

// volume is how the file describes a volume.
func (j *composeJudge) volume(name string) boundary.Volume {
	n := j.file.Volumes[name]
	if isNothing(&n) {
		return boundary.Volume{}
	}
	keys := j.only("volumes."+name, resolved(&n), "driver driver_opts external name labels")
	value := func(key string) *yaml.Node {
		n := keys[key]
		return resolved(&n)
	}
	v := boundary.Volume{Driver: value("driver").Value}
	v.Unknown = !isNothing(value("external")) && value("external").Value != "false"
	if given := value("name"); !isNothing(given) {
		text, known := j.expanded(given.Value)
		v.Unknown = v.Unknown || !known || !j.of.owns("volume", name, text)
	}
	for option, is := range named(plain(value("driver_opts"))) {
		if isNothing(value("driver_opts")) {
			break
		}
		text, known := j.expanded(fmt.Sprint(is))
		if !known {
			j.unknownMount(text)
		}
		if v.Options == nil {
			v.Options = map[string]string{}
		}
		v.Options[option] = text
	}
	return v
}

func (j *composeJudge) mount(source, target string, how mountFlags) {
	text, known := j.expanded(source)
	if !known || strings.HasPrefix(text, "~") && text != "~" && text[1] != '/' { // older Compose reads ~USER
		j.unknownMount(source)
		return
	}
	if strings.Contains(target, "$") {
		j.unknownMount(target)
		return
	}
	path := j.absolute(text)
	j.service.mounted = append(j.service.mounted, map[string]any{"Type": "bind", "Source": path, "Destination": target, "RW": how.writable, "Mode": how.relabel, "Propagation": how.propagation})
	if how.writable {
		j.service.mounts = append(j.service.mounts, path)
	}
	if target != "" { // what Compose copies is no mount
		j.service.reads = append(j.service.reads, path)
	}
}

func (j *composeJudge) unknownMount(source string) {
	j.problem("mounts %s: what its variables stand for is up to Compose; write the path", source)
}

func (j *composeJudge) absolute(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		return filepath.Join(j.home, rest)
	}
	if !filepath.IsAbs(path) {
		return filepath.Join(j.dir, path)
	}
	if hostfiles.Climbs(path, j.dir) {
		j.problem("has the path %s: programs differ on where .. leads, behind a link or what a service could make one; write it without ..", path)
	}
	return filepath.Clean(path)
}
