// Package dockerrun reads the arguments of docker run, as far as it takes to know what they make
// of a container that has no network, and refuses those by which it would have
// a way out.
package dockerrun

import (
	"slices"
	"strings"
	"sync"
)

// A Command is what docker run was to do.
type Command struct {
	Flags []string // for docker run, in order, without those that follow
	Image string
	Args  []string // behind the image

	Entrypoint    string // of --entrypoint
	HasEntrypoint bool
	Pull          string // of --pull; "" where it was not given
	Platform      string // of --platform; it is among Flags too
	User          string // of --user, which is among Flags too
	Health        bool   // there are flags for a health check
	ReadOnly      bool

	Sources []string // paths of the machine that are mounted
}

// A RefusedError names a flag that opens a way around egressd, or that egressd does not know.
type RefusedError struct{ Flag, Why, Instead string }

func (e *RefusedError) Error() string { return e.Flag + ": " + e.Why }

// switches holds the flags of docker run without a value, by long and short name. It is filled on first use.
var switches = sync.OnceValue(func() map[string]bool {
	return map[string]bool{
		"detach": true, "d": true, "interactive": true, "i": true, "tty": true, "t": true, "rm": true, "init": true, "quiet": true, "q": true,
		"read-only": true, "sig-proxy": true, "no-healthcheck": true, "oom-kill-disable": true, "disable-content-trust": true,
	}
})

// Flags that take one, and leave the boundary as it is whatever that is.
var harmless = sync.OnceValue(func() map[string]bool {
	return map[string]bool{
		"add-host": true, "annotation": true, "attach": true, "a": true, "blkio-weight": true, "blkio-weight-device": true, "cap-drop": true, "cidfile": true,
		"cpu-period": true, "cpu-quota": true, "cpu-rt-period": true, "cpu-rt-runtime": true, "cpu-shares": true, "c": true, "cpus": true, "cpuset-cpus": true, "cpuset-mems": true,
		"detach-keys": true, "device-read-bps": true, "device-read-iops": true, "device-write-bps": true, "device-write-iops": true, "dns-option": true, "dns-search": true,
		"domainname": true, "env": true, "e": true, "env-file": true, "group-add": true, "health-cmd": true, "health-interval": true, "health-retries": true,
		"health-start-interval": true, "health-start-period": true, "health-timeout": true, "hostname": true, "h": true, "kernel-memory": true, "label": true, "l": true,
		"label-file": true, "log-driver": true, "log-opt": true, "memory": true, "m": true, "memory-reservation": true, "memory-swap": true, "memory-swappiness": true,
		"name": true, "oom-score-adj": true, "pids-limit": true, "platform": true, "restart": true, "shm-size": true, "stop-signal": true, "stop-timeout": true,
		"storage-opt": true, "tmpfs": true, "ulimit": true, "user": true, "u": true, "workdir": true, "w": true,
	}
})

// Flags that are looked at, or refused.
var judged = sync.OnceValue(func() map[string]func(c *Command, flag, value string) error {
	all := map[string]func(c *Command, flag, value string) error{
		"cap-add": func(_ *Command, flag, value string) error {
			name := strings.TrimPrefix(strings.ToUpper(value), "CAP_")
			if slices.Contains(leaving, name) {
				return &RefusedError{flag + " " + value, "with it a program gets out of its network, or past what holds it", "leave it out; egressd captures everything without it"}
			}
			return nil
		},
		"security-opt": func(_ *Command, flag, value string) error {
			key, is, _ := strings.Cut(strings.Replace(value, ":", "=", 1), "=")
			if key == "no-new-privileges" && is != "false" || key == "seccomp" && is != "unconfined" || key == "apparmor" && is != "unconfined" || key == "label" && is != "disable" {
				return nil
			}
			return &RefusedError{flag + " " + value, "it takes away what Docker holds the program with", "leave it out, or give a profile of your own"}
		},
		"ipc":      private("none", "private", "shareable"),
		"cgroupns": private("private"),
		"pid":      private(),
		"uts":      private(),
		"userns":   private(),
		"volume":   volume, "v": volume, "mount": mount,
		"volumes-from":       refused("it brings in what egressd does not see", "-v SOURCE:TARGET"),
		"volume-driver":      refused("egressd does not know what it brings in", "-v SOURCE:TARGET"),
		"privileged":         refused("it is no boundary: such a container is the host", "--cap-add with the one that the program needs"),
		"device":             refused("devices lead out of a container", "run what needs the device outside"),
		"device-cgroup-rule": refused("devices lead out of a container", "run what needs the device outside"),
		"gpus":               refused("devices lead out of a container", "run what needs the device outside"),
		"cgroup-parent":      refused("by its control group egressd knows which container it is", "leave it out"),
		"runtime":            refused("egressd does not know what another runtime holds", "docker run --network none --runtime …, and egressd attach"),
		"sysctl":             refused("settings of its network are egressd's", "docker run --network none --sysctl …, and egressd attach"),
		"network":            refused("the container has egressd's network alone", "egressd docker run without it; name what it may reach in the policy"),
		"dns":                refused("egressd answers its names", "leave it out"),
		"publish":            refused("nobody reaches a container without a network of Docker's", "egressd attach, and docker exec; or a sidecar (egressd init compose)"),
		"link":               refused("the container has egressd's network alone", "name in the policy what it may reach"),
	}
	for name, like := range map[string]string{
		"net": "network", "network-alias": "network", "net-alias": "network", "ip": "network", "ip6": "network", "link-local-ip": "network", "mac-address": "network",
		"p": "publish", "publish-all": "publish", "P": "publish", "expose": "publish",
	} {
		all[name] = all[like]
	}
	return all
})

// leaving are capabilities by which a program leaves its network, or what holds it.
var leaving = []string{"ALL", "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "SYS_RAWIO", "BPF", "PERFMON", "DAC_READ_SEARCH", "SYS_BOOT", "MAC_ADMIN", "MAC_OVERRIDE", "CHECKPOINT_RESTORE"}

func refused(why, instead string) func(*Command, string, string) error {
	return func(_ *Command, flag, _ string) error { return &RefusedError{flag, why, instead} }
}

func private(values ...string) func(*Command, string, string) error {
	return func(_ *Command, flag, value string) error {
		if slices.Contains(values, value) {
			return nil
		}
		return &RefusedError{flag + " " + value, "it shares what belongs to somebody outside of the container", "leave it out"}
	}
}

func volume(c *Command, _, value string) error {
	if source, _, ok := strings.Cut(value, ":"); ok && strings.HasPrefix(source, "/") || strings.HasPrefix(value, ".") || strings.HasPrefix(value, "~") {
		c.Sources = append(c.Sources, strings.Split(value, ":")[0])
	}
	return nil
}

func mount(c *Command, flag, value string) error {
	kind, source := "volume", ""
	for part := range strings.SplitSeq(value, ",") {
		key, is, _ := strings.Cut(part, "=")
		switch strings.ToLower(strings.TrimSpace(key)) { // as docker does, with the type too
		case "type":
			kind = strings.ToLower(is)
		case "source", "src":
			source = is
		case "volume-opt", "volume-driver":
			return &RefusedError{flag + " " + value, "egressd does not know what the volume brings in", "-v SOURCE:TARGET"}
		}
	}
	switch {
	case strings.ContainsAny(value, "\"\r\n"): // docker reads a line of CSV, and no second one
		return &RefusedError{flag + " " + value, "egressd does not read mounts with quotes or in several lines", "-v SOURCE:TARGET"}
	case kind == "bind":
		c.Sources = append(c.Sources, source)
	case kind != "volume" && kind != "tmpfs":
		return &RefusedError{flag + " " + value, "egressd does not know what it brings in", "-v SOURCE:TARGET"}
	}
	return nil
}

// Parse reads what follows docker run. An error that is a [*RefusedError] says what to type
// instead.
func Parse(args []string) (*Command, error) {
	c := &Command{}
	for len(args) > 0 {
		arg := args[0]
		switch {
		case arg == "--":
			args = args[1:]
		case strings.HasPrefix(arg, "--"):
			rest, err := c.long(arg, args[1:])
			if err != nil {
				return nil, err
			}
			args = rest
			continue
		case strings.HasPrefix(arg, "-") && arg != "-":
			rest, err := c.short(arg, args[1:])
			if err != nil {
				return nil, err
			}
			args = rest
			continue
		}
		break
	}
	if len(args) == 0 || args[0] == "" || strings.HasPrefix(args[0], "-") {
		return nil, &RefusedError{"docker run", "there is no image", "egressd docker run IMAGE [COMMAND]"}
	}
	c.Image, c.Args = args[0], args[1:]
	return c, nil
}

// long takes --NAME, --NAME=VALUE, or --NAME VALUE of which the value is the first of rest.
func (c *Command) long(arg string, rest []string) ([]string, error) {
	name, value, given := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	switch {
	case name == "privileged" && value == "false":
		return rest, nil
	case switches()[name] || name == "privileged" || name == "publish-all":
		return rest, c.take("--"+name, name, value, arg)
	case given:
		return rest, c.take("--"+name, name, value, arg)
	case len(rest) == 0:
		return nil, &RefusedError{arg, "it needs a value", arg + " VALUE"}
	}
	return rest[1:], c.take(arg, name, rest[0], arg, rest[0])
}

// short takes -abc, of which the last may have a value, as -eA=b, -e=A=b or -e A=b.
func (c *Command) short(arg string, rest []string) ([]string, error) {
	for letters := arg[1:]; letters != ""; letters = letters[1:] {
		flag, value := "-"+letters[:1], letters[1:]
		if switches()[flag[1:]] || flag == "-P" {
			if value, given := strings.CutPrefix(value, "="); given {
				return rest, c.take(flag, flag[1:], value, flag+"="+value)
			}
			if err := c.take(flag, flag[1:], "", flag); err != nil {
				return nil, err
			}
			continue
		}
		if value == "" {
			if len(rest) == 0 {
				return nil, &RefusedError{flag, "it needs a value", flag + " VALUE"}
			}
			value, rest = rest[0], rest[1:]
		} else {
			value = strings.TrimPrefix(value, "=")
		}
		return rest, c.take(flag, flag[1:], value, flag, value)
	}
	return rest, nil
}

// take judges one flag; as is what it is passed on as.
func (c *Command) take(flag, name, value string, as ...string) error {
	judge := judged()[name]
	switch {
	case name == "entrypoint":
		c.Entrypoint, c.HasEntrypoint = value, true
		return nil
	case name == "pull":
		c.Pull = value
		return nil
	case judge != nil:
		if err := judge(c, flag, value); err != nil {
			return err
		}
	case !switches()[name] && !harmless()[name]:
		return &RefusedError{flag, "egressd does not know this flag, nor whether it leads out", "leave it out, or docker run --network none, and egressd attach"}
	}
	switch name {
	case "platform":
		c.Platform = value
	case "user", "u":
		c.User = value
	case "read-only":
		c.ReadOnly = value != "false"
	}
	c.Health = c.Health || strings.HasPrefix(name, "health-")
	c.Flags = append(c.Flags, as...)
	return nil
}
