package compose

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/hostfiles"
	"go.yaml.in/yaml/v3"
)

// A composeJudge looks for parts of a service that its network does not hold. An unknown key is a problem, because a
// key of a later Compose may lead out.
type composeJudge struct {
	file    *composeText
	service Service
	dir     string // of the compose file
	home    string
}

// A sharedWith is a service whose namespace of some kind another one has.
type sharedWith struct{ key, service string }

// harmlessKeys are keys of a service that take it nowhere, whatever they say.
var harmlessKeys = strings.Fields(`annotations attach blkio_config cap_drop cgroup_parent command container_name cpu_count cpu_percent
	cpu_period cpu_quota cpu_rt_period cpu_rt_runtime cpu_shares cpus cpuset depends_on deploy develop dns dns_opt dns_search domainname entrypoint
	environment expose external_links extra_hosts gpus group_add healthcheck hostname image init isolation labels links
	mac_address mem_limit mem_reservation mem_swappiness memswap_limit models network_mode networks oom_kill_disable oom_score_adj pids_limit
	platform ports profiles pull_policy read_only restart runtime scale shm_size stdin_open stop_grace_period stop_signal storage_opt sysctls
	tmpfs tty ulimits user working_dir`)

// outsideKeys are keys that say something of what no network holds, with the values that say
// nothing of it.
var outsideKeys = map[string][]string{
	"privileged": {"false"}, "use_api_socket": {"false"}, "pid": nil, "uts": nil, "userns_mode": nil, "cgroup": {"private"}, "ipc": {"none", "private", "shareable"},
	"devices": nil, "device_cgroup_rules": nil, "volumes_from": nil, "provider": nil, "credential_spec": nil,
}

// judge reads the keys of a service.
func (j *composeJudge) judge(keys map[string]yaml.Node) Service {
	s := &j.service
	value := func(key string) *yaml.Node {
		n := keys[key]
		return resolved(&n)
	}
	for _, key := range keysIn(keys) {
		n := value(key)
		values, outside := outsideKeys[key]
		switch {
		case isNothing(n) || slices.Contains(harmlessKeys, key) || strings.HasPrefix(key, "x-"):
		case outside:
			j.outside(key, n, values)
		case key == "extends":
			j.problem("extends another service, which is not looked at")
		case key == "cap_add":
			j.capabilities(n)
		case key == "security_opt":
			j.security(n)
		case key == "build":
			j.build(n)
		case key == "env_file" || key == "label_file":
			j.textFiles(n)
		case key == "logging":
			j.logging(n)
		case key == "volumes":
			j.volumes(n)
		case key == "configs":
			j.given(n, j.file.Configs)
		case key == "secrets":
			j.given(n, j.file.Secrets)
		case key == "post_start" || key == "pre_stop":
			j.hooks(key, n)
		default:
			j.problem("has %s, of which egressd does not know whether it leads out", key)
		}
	}
	s.Networks, s.shares, s.ports = keysOf(value("networks")), value("network_mode").Value, len(value("ports").Content) > 0
	return *s
}

func keysIn(keys map[string]yaml.Node) (all []string) {
	for key := range keys {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

func (j *composeJudge) problem(text string, a ...any) {
	j.service.problems = append(j.service.problems, fmt.Sprintf(text, a...))
}

func (j *composeJudge) outside(key string, n *yaml.Node, harmless []string) {
	of, another := strings.CutPrefix(n.Value, "service:")
	switch {
	case n.Kind == yaml.ScalarNode && slices.Contains(harmless, n.Value):
	case another && (key == "pid" || key == "ipc"):
		j.service.joins = append(j.service.joins, sharedWith{key, of})
	case key == "privileged":
		j.problem("is privileged: it becomes root of the host")
	case n.Kind == yaml.ScalarNode:
		j.problem("has %s: %s", key, n.Value)
	default:
		j.problem("has %s, which lead out", key)
	}
}

func (j *composeJudge) capabilities(n *yaml.Node) {
	for _, capability := range valuesOf(n) {
		if one := strings.TrimPrefix(strings.ToUpper(capability), "CAP_"); slices.Contains(escaping, one) || strings.Contains(one, "$") {
			j.problem("has cap_add: %s", one)
		}
	}
}

// escaping are capabilities with which a container leaves its network, or uses the address of another container.
var escaping = []string{"ALL", "SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "SYS_RAWIO", "DAC_READ_SEARCH", "BPF", "PERFMON", "NET_ADMIN", "NET_RAW"}

func (j *composeJudge) security(n *yaml.Node) {
	for _, option := range valuesOf(n) {
		_, is, _ := strings.Cut(strings.Replace(option, ":", "=", 1), "=")
		if is == "unconfined" || is == "disable" || strings.Contains(option, "$") {
			j.problem("has security_opt: %s", option)
		}
	}
}

// localLogs are the drivers of logs that keep what a program prints on this machine. Others send it on,
// from the engine, past every network of the service.
var localLogs = []string{"", "json-file", "local", "none", "journald"}

func (j *composeJudge) logging(n *yaml.Node) {
	var log struct{ Driver string }
	if err := n.Decode(&log); err != nil {
		j.problem("has logging that cannot be read: %v", err)
		return
	}
	if !slices.Contains(localLogs, log.Driver) {
		j.problem("has logging.driver: %s, by which the engine may send what it prints to another machine; json-file, local, journald and none do not", log.Driver)
	}
}

// hooks are commands that Compose has the engine start in the container.
func (j *composeJudge) hooks(key string, n *yaml.Node) {
	for _, one := range n.Content {
		var hook struct{ Privileged string }
		if err := resolved(one).Decode(&hook); err != nil || hook.Privileged != "" && hook.Privileged != "false" {
			j.problem("has %s that is privileged", key)
		}
	}
}

// given are configs or secrets of a service: of those that are files, the files are mounted.
func (j *composeJudge) given(n *yaml.Node, all map[string]composeGiven) {
	for _, one := range n.Content {
		name := resolved(one).Value
		if resolved(one).Kind == yaml.MappingNode {
			var long struct{ Source string }
			if resolved(one).Decode(&long) != nil {
				j.problem("has a config or a secret that cannot be read")
				continue
			}
			name = long.Source
		}
		if strings.Contains(name, "$") {
			j.unknownMount(name)
			continue
		}
		if file := all[name].File; file != "" {
			j.mount(file, false)
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
		case strings.ContainsAny(parts[0][:min(1, len(parts[0]))], "./~"):
			j.mount(parts[0], len(parts) < 3 || !slices.Contains(strings.Split(parts[2], ","), "ro"))
		default:
			j.named(parts[0])
		}
	}
}

func (j *composeJudge) longVolume(n *yaml.Node) {
	var m struct {
		Type     string `yaml:"type"`
		Source   string `yaml:"source"`
		ReadOnly string `yaml:"read_only"`
	}
	if err := n.Decode(&m); err != nil {
		j.problem("has a volume that cannot be read: %v", err)
		return
	}
	switch m.Type {
	case "bind":
		j.mount(m.Source, m.ReadOnly != "true")
	case "volume":
		j.named(m.Source)
	case "tmpfs", "image":
	default:
		j.problem("mounts %s as %q, of which egressd does not know whether it leads out", m.Source, m.Type)
	}
}

// named judges a named volume. Driver and options may turn the volume into a host folder or a network share.
func (j *composeJudge) named(name string) {
	if strings.Contains(name, "$") {
		j.unknownMount(name)
		return
	}
	v := j.file.Volumes[name]
	if !slices.Contains([]string{"", "local"}, v.Driver) {
		j.problem("has the volume %s, whose driver is %s: what is written to it may go to another machine", name, v.Driver)
	}
	if kind := v.Options["type"]; !slices.Contains([]string{"", "none", "tmpfs"}, kind) {
		j.problem("has the volume %s, whose driver_opts have type: %s; it may be of another machine, and none and tmpfs are not", name, kind)
	}
	if v.elsewhere() && !slices.Contains(j.service.external, name) {
		j.service.external = append(j.service.external, name)
	}
	for _, value := range v.Options {
		text, known := j.expanded(value)
		if !known {
			j.unknownMount(value)
			continue
		}
		for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(",=:", r) }) {
			if strings.HasPrefix(part, "/") {
				j.mount(part, true)
			}
		}
	}
}

func (j *composeJudge) mount(source string, writable bool) {
	text, known := j.expanded(source)
	if !known {
		j.unknownMount(source)
		return
	}
	path := j.absolute(text)
	switch {
	case hostfiles.Leads(path, j.home):
		j.problem("mounts %s, by which others act for it outside", path)
	case writable:
		j.service.mounts = append(j.service.mounts, path)
	}
	j.service.reads = append(j.service.reads, path)
}

func (j *composeJudge) unknownMount(source string) {
	j.problem("mounts %s: what its variables stand for is up to Compose; write the path", source)
}

// expanded puts in HOME, the one variable that is the same for Compose as for this process: PWD
// is where somebody calls it, or what .env says. known reports whether that is all.
func (j *composeJudge) expanded(text string) (result string, known bool) {
	text = strings.ReplaceAll(text, "${HOME}", j.home)
	if rest, ok := strings.CutPrefix(text, "$HOME/"); ok {
		text = j.home + "/" + rest
	}
	return text, !strings.Contains(text, "$")
}

func (j *composeJudge) absolute(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		return filepath.Join(j.home, rest)
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(j.dir, path)
}
