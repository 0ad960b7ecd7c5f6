package boundary

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// alone reports whether the container has no network at all.
func (p *Machine) alone() bool { return len(p.Networks) == 0 }

// always are judges of fields that count where a description leaves them out, too.
var always = sync.OnceValue(func() map[string]func(*judge, Description) {
	return map[string]func(*judge, Description){
		host + "NetworkMode": func(j *judge, d Description) {
			if text(d.at(host+"NetworkMode")) == "" {
				j.networkMode("default")
			}
		},
		host + "CapDrop": (*judge).capDrop,
	}
})

// mode judges a field that has one of few values.
func mode(values ...string) func(*judge, any) {
	return func(j *judge, value any) {
		if is := fmt.Sprint(value); !slices.Contains(values, is) {
			instead := leaveOut
			if others := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" }); len(others) > 0 {
				instead += ", or write " + strings.Join(others, ", ")
			}
			j.refuse(is, j.why, instead)
		}
	}
}

func (j *judge) networkMode(value any) {
	is := fmt.Sprint(value)
	switch {
	case is == "none" || is == "" || j.ofPeer(is):
	case j.machine.alone():
		j.refuse(is, "the container would have a network besides egressd", "--network none")
	case !slices.Contains(j.machine.Networks, is):
		j.refuse(is, "that network leads past egressd", "egressd init compose, or egressd init docker")
	}
}

// ofPeer reports whether a mode is the namespace of a container that was judged likewise.
func (j *judge) ofPeer(mode string) bool {
	id, of := strings.CutPrefix(mode, "container:")
	return of && slices.Contains(j.machine.Peers, id)
}

// own takes these modes, and namespaces of peers.
func own(values ...string) func(*judge, any) {
	alone := mode(values...)
	return func(j *judge, value any) {
		if !j.ofPeer(fmt.Sprint(value)) {
			alone(j, value)
		}
	}
}

func (j *judge) networks(value any) {
	all, _ := value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch {
		case name == "none" || slices.Contains(j.machine.Networks, name):
		case j.machine.alone():
			j.refuse(name, "the container would have a network besides egressd", "docker network disconnect "+name+" CONTAINER")
		default:
			j.refuse(name, "that network leads past egressd", "docker network disconnect "+name+" CONTAINER")
		}
	}
}

// sysctlNames are settings that change nothing but the container's own shared memory, queues, ports and keep-alive.
const sysctlNames = `kernel.msgmax kernel.msgmnb kernel.msgmni kernel.sem kernel.shmall kernel.shmmax kernel.shmmni kernel.shm_rmid_forced
	fs.mqueue.msg_default fs.mqueue.msg_max fs.mqueue.msgsize_default fs.mqueue.msgsize_max fs.mqueue.queues_max
	net.core.somaxconn net.ipv4.ip_local_port_range net.ipv4.ip_unprivileged_port_start
	net.ipv4.tcp_keepalive_time net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_max_syn_backlog net.ipv4.tcp_fin_timeout`

func (j *judge) sysctls(value any) {
	all, _ := value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(strings.Fields(sysctlNames), name) {
			j.refuse(name, "this setting of the kernel may change routes or what others see", leaveOut)
		}
	}
}

// A Capability is one of Linux (capabilities(7)).
type Capability struct {
	Name string
	Bit  int
	Does string // what a container can do with it past egressd; empty: nothing
}

const (
	netAdmin = "NET_ADMIN"
	netRaw   = "NET_RAW"
)

// Capabilities returns those of Linux in the order of their bits. A name or a bit that is not there is refused.
func Capabilities() []Capability {
	all := []Capability{
		{Name: "CHOWN"}, {Name: "DAC_OVERRIDE"}, {Name: "DAC_READ_SEARCH", Does: "it opens files of the host"}, {Name: "FOWNER"}, {Name: "FSETID"},
		{Name: "KILL"}, {Name: "SETGID"}, {Name: "SETUID"}, {Name: "SETPCAP"}, {Name: "LINUX_IMMUTABLE"}, {Name: "NET_BIND_SERVICE"}, {Name: "NET_BROADCAST"},
		{Name: netAdmin, Does: "it takes addresses and routes that are not its own"}, {Name: netRaw, Does: "it sends packets with addresses that are not its own"},
		{Name: "IPC_LOCK"}, {Name: "IPC_OWNER"}, {Name: "SYS_MODULE", Does: "it loads modules of the kernel"}, {Name: "SYS_RAWIO", Does: "it writes to devices"}, {Name: "SYS_CHROOT"},
		{Name: "SYS_PTRACE"}, {Name: "SYS_PACCT", Does: "it writes an account of the host's processes"}, {Name: "SYS_ADMIN", Does: "it leaves what holds it"},
		{Name: "SYS_BOOT", Does: "it restarts the machine"}, {Name: "SYS_NICE"}, {Name: "SYS_RESOURCE", Does: "it has more of the machine than it was given"},
		{Name: "SYS_TIME", Does: "it sets the clock of the host"}, {Name: "SYS_TTY_CONFIG", Does: "it hangs up terminals of the host"}, {Name: "MKNOD"}, {Name: "LEASE"}, {Name: "AUDIT_WRITE"},
		{Name: "AUDIT_CONTROL", Does: "it changes what the host records"}, {Name: "SETFCAP"}, {Name: "MAC_OVERRIDE", Does: "it passes the host's access rules"},
		{Name: "MAC_ADMIN", Does: "it changes the host's access rules"}, {Name: "SYSLOG", Does: "it reads the kernel's messages"}, {Name: "WAKE_ALARM", Does: "it wakes the machine"},
		{Name: "BLOCK_SUSPEND", Does: "it keeps the machine awake"}, {Name: "AUDIT_READ", Does: "it reads what the host records"}, {Name: "PERFMON", Does: "it watches the kernel"},
		{Name: "BPF", Does: "it loads programs into the kernel"}, {Name: "CHECKPOINT_RESTORE", Does: "it chooses the numbers of processes, and reads their files"},
	}
	for i := range all {
		all[i].Bit = i
	}
	return all
}

// CapabilityOf returns a capability by its bit. One that the list does not have is refused.
func CapabilityOf(bit int) Capability {
	if all := Capabilities(); bit < len(all) {
		return all[bit]
	}
	return Capability{fmt.Sprintf("the capability %d", bit), bit, "egressd does not know it"}
}

// JudgeCapability returns what a capability does past egressd, or "". The name may begin with CAP_. A container
// without a network may have NET_ADMIN and NET_RAW, which are over its loopback.
func JudgeCapability(name string, alone bool) (does string) {
	name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	for _, c := range Capabilities() {
		if c.Name != name {
			continue
		}
		if alone && (name == netAdmin || name == netRaw) {
			return ""
		}
		return c.Does
	}
	if name == "ALL" {
		return "it leaves what holds it"
	}
	return "egressd does not know this capability"
}

func (j *judge) capAdd(value any) {
	for _, name := range texts(value) {
		if does := JudgeCapability(name, j.machine.alone()); does != "" {
			j.refuse(strings.TrimPrefix(strings.ToUpper(name), "CAP_"), does, leaveOut)
		}
	}
}

// capDrop wants NET_RAW dropped in a network with others: the engine gives it to every container.
func (j *judge) capDrop(d Description) {
	for _, name := range texts(d.at(host + "CapDrop")) {
		if one := strings.TrimPrefix(strings.ToUpper(name), "CAP_"); one == netRaw || one == "ALL" {
			return
		}
	}
	if !j.machine.alone() {
		j.refuse("", "it has NET_RAW: it sends packets with addresses that are not its own", "--cap-drop NET_RAW, or cap_drop: [NET_RAW] in a compose file")
	}
}

// securityOpt takes what adds a restriction. A profile of the project's may let every call through, so none is taken. Docker and Compose
// look for a profile of seccomp in a file of the working directory: for "default", and older versions of docker for "builtin", too.
func (j *judge) securityOpt(value any) {
	for _, option := range texts(value) {
		key, is, _ := strings.Cut(strings.Replace(option, ":", "=", 1), "=")
		switch {
		case key == "no-new-privileges" && (is == "" || is == "true"):
		case key == "seccomp" && is == "builtin" && j.listed:
		case key == "apparmor" && is == "docker-default":
		case key == "label" && strings.HasPrefix(strings.Replace(is, ":", "=", 1), "level="):
		default:
			j.refuse(fmt.Sprintf("%.60s", option), "it may take away what the engine holds the program with", leaveOut)
		}
	}
}

// masked are parts of /proc and /sys that every version of the engine hides or makes read-only.
var masked = map[string][]string{
	host + "MaskedPaths":   {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
	host + "ReadonlyPaths": {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
}

// SystemPaths returns the paths below /proc and /sys that a container must not see, and the paths that it must not write.
func SystemPaths() (hidden, readOnly []string) {
	return masked[host+"MaskedPaths"], masked[host+"ReadonlyPaths"]
}

func (j *judge) systemPaths(value any) {
	has := texts(value)
	for _, path := range masked[j.field] {
		if !slices.Contains(has, path) {
			j.refuse(path, "it is open, and the engine masks it otherwise", "leave --security-opt systempaths=unconfined and --privileged out")
			return
		}
	}
}

// volumesFrom takes what the engine has listed among the mounts.
func (j *judge) volumesFrom(value any) {
	if !j.listed {
		j.refuse(shown(value), "it brings in what another container has mounted, which egressd does not see here", leaveOut)
	}
}

func (j *judge) cgroupns(value any) {
	if is := fmt.Sprint(value); is != "" && is != "private" && !(is == "host" && j.machine.HostGroups) {
		j.refuse(is, "it sees control groups of others", leaveOut)
	}
}

// logOptionNames are options of json-file, local and journald.
const logOptionNames = "max-size max-file compress mode max-buffer-size labels labels-regex env env-regex tag cache-disabled cache-max-size cache-max-file cache-compress"

func (j *judge) logOptions(value any) {
	all, _ := value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(strings.Fields(logOptionNames), name) {
			j.refuse(name, "another driver of logs may send what is printed to a place that it names", leaveOut)
		}
	}
}

func (j *judge) image(value any) {
	name := text(value)
	for _, own := range j.machine.Images {
		if own != "" && SameImage(name, own) {
			j.refuse(name, "that is egressd's own image", "an image of your own, under another name")
			return
		}
	}
}

// SameImage reports whether two names stand for the same image: without docker.io, localhost, library and latest.
func SameImage(a, b string) bool { return plainImage(a) == plainImage(b) }

// SameRepository reports whether two names stand for images of one repository, under any tag.
func SameRepository(a, b string) bool {
	repository := func(name string) string {
		name = plainImage(name)
		return name[:max(0, strings.LastIndexByte(name, ':'))]
	}
	return repository(a) == repository(b)
}

func plainImage(name string) string {
	name = strings.ToLower(name)
	for _, prefix := range []string{"localhost/", "docker.io/", "index.docker.io/", "registry-1.docker.io/", "library/"} { // the first is Podman's
		name = strings.TrimPrefix(name, prefix)
	}
	if strings.HasPrefix(name, "sha256:") {
		return name
	}
	if before, _, found := strings.Cut(name, "@"); found { // the digest of a name counts, not the name
		name = before
	}
	if !strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") {
		name += ":latest"
	}
	return name
}

// ReservedLabel reports whether a label is one by which egressd, Compose or the dev container tools find containers.
func ReservedLabel(name string) bool {
	return name == "egressd" || strings.HasPrefix(name, "egressd.") || strings.HasPrefix(name, "com.docker.compose.")
}

func (j *judge) labels(value any) {
	all, _ := value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if ReservedLabel(name) && name != "egressd" && !(j.machine.Labelled && strings.HasPrefix(name, "com.docker.compose.")) {
			j.refuse(name, "by labels of that name egressd's scripts find egressd's container", leaveOut)
		} else if slices.Contains(j.machine.Labels, name) {
			j.refuse(name, "by labels of that name you tell containers apart, and a file of the project would choose which sandbox it is", leaveOut)
		}
	}
}
