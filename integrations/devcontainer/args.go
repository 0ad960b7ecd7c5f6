package devcontainer

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
)

// An argument is a flag of docker run with its value. Of a flag without one the value is empty.
type argument struct{ name, value string }

// The flags of docker run that runArgs may have. Any other flag is refused by name. No engine can be asked what a flag
// means before it has made the container.
const (
	switches = "--init --rm --read-only --interactive --tty --detach --no-healthcheck --oom-kill-disable --publish-all --privileged -i -t -d -P"
	harmless = `--env --workdir --user --hostname --domainname --dns --dns-search --dns-option --add-host --shm-size --memory --memory-swap --memory-reservation
		--memory-swappiness --cpus --cpu-shares --cpu-period --cpu-quota --cpuset-cpus --cpuset-mems --ulimit --tmpfs --restart --stop-signal --stop-timeout
		--group-add --platform --pull --entrypoint --expose --publish --ip --ip6 --mac-address --network-alias --health-cmd --health-interval --health-retries
		--health-timeout --health-start-period --oom-score-adj --pids-limit --cap-drop -e -w -u -h -m -c -p -a`
)

// engineFlags are flags whose value is that of a field of the engine's HostConfig; those in the second list hold many.
var (
	engineFlags = map[string]string{"--network": "NetworkMode", "--net": "NetworkMode", "--pid": "PidMode", "--ipc": "IpcMode", "--uts": "UTSMode", "--userns": "UsernsMode",
		"--cgroupns": "CgroupnsMode", "--runtime": "Runtime", "--cgroup-parent": "CgroupParent", "--isolation": "Isolation", "--volume-driver": "VolumeDriver"}
	engineLists = map[string]string{"--cap-add": "CapAdd", "--security-opt": "SecurityOpt", "--device": "Devices", "--device-cgroup-rule": "DeviceCgroupRules",
		"--gpus": "DeviceRequests", "--volumes-from": "VolumesFrom", "--link": "Links", "--annotation": "Annotations"}
	otherValues = "--sysctl --label -l --log-driver --log-opt --volume -v --mount --env-file --name"
)

// takesValue reports whether a flag needs a value. known says whether egressd knows the flag at all.
func takesValue(name string) (needs, known bool) {
	if has(switches, name) {
		return false, true
	}
	return true, engineFlags[name] != "" || engineLists[name] != "" || has(harmless+" "+otherValues, name)
}

func has(list, name string) bool {
	for one := range strings.FieldsSeq(list) {
		if one == name {
			return true
		}
	}
	return false
}

// readArguments reads words as docker run does.
func (c *checker) readArguments(words []string) (all []argument, err error) {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		name, value, given := strings.Cut(word, "=")
		rest := ""
		if !strings.HasPrefix(word, "--") && strings.HasPrefix(word, "-") && len(word) > 1 {
			name, rest, given = word[:2], word[2:], false
		}
		needs, known := takesValue(name)
		switch {
		case strings.HasPrefix(word, "${"):
			return nil, c.breaks("runArgs", word+" may be any flag", "write the flag that it stands for")
		case !strings.HasPrefix(word, "-"):
			return nil, c.breaks("runArgs", word+" is no flag: docker run would take it for the image", "leave it out")
		case !known:
			return nil, c.breaks("runArgs", name+": egressd does not know this flag, nor whether it leads out", "leave it out")
		case !needs && rest != "": // flags of one letter, written together
			words = append([]string{"-" + rest}, words...)
		case needs && rest != "":
			value = strings.TrimPrefix(rest, "=")
		case needs && !given && len(words) == 0:
			return nil, c.breaks("runArgs", name+" needs a value", name+"=VALUE")
		case needs && !given:
			value, words = words[0], words[1:]
		}
		all = append(all, argument{name, value})
	}
	return all, nil
}

func (c *checker) arguments(said map[string]any) error {
	args, err := c.readArguments(words(said["runArgs"]))
	if err != nil {
		return err
	}
	for _, a := range args {
		d := newDescribed("--")
		if err := c.describe(a, d); err != nil {
			return err
		}
		if err := c.judge("runArgs", d); err != nil {
			return err
		}
	}
	return nil
}

// describe adds one flag of docker run to a description.
func (c *checker) describe(a argument, d *described) error {
	const setting = "runArgs"
	name, is, _ := strings.Cut(a.value, "=")
	switch {
	case engineFlags[a.name] != "":
		d.host[engineFlags[a.name]] = a.value
	case engineLists[a.name] != "":
		d.host[engineLists[a.name]] = []any{a.value}
		if a.name == "--cap-add" {
			return c.netAdmin(setting, a.value)
		}
	}
	switch a.name {
	case "--privileged":
		if a.value != "false" {
			d.host["Privileged"] = true
		}
	case "--sysctl":
		d.host["Sysctls"] = map[string]any{name: is}
	case "--label", "-l":
		d.config["Labels"] = map[string]any{name: is}
		if strings.HasPrefix(name, "devcontainer.") || strings.Contains(name, "$") {
			return c.breaks(setting, a.name+" "+name+": by such labels tools find the container", "leave it out")
		}
	case "--log-driver":
		d.host["LogConfig"] = map[string]any{"Type": a.value}
	case "--log-opt":
		d.host["LogConfig"] = map[string]any{"Config": map[string]any{name: is}}
	case "--volume", "-v":
		return c.volume(a.value, d)
	case "--mount":
		return c.mount(setting, a.value, d)
	case "--env-file":
		file := c.envFile(a.value)
		if place := c.replaceable(setting, filepath.Clean(file)); place != "" && !c.hold(filepath.Clean(file), true) { // a line NAME takes the user's variable
			return c.breaks(setting, "--env-file "+file+" lies in "+place+": somebody in the container can put a link in its place, and the next one has in its environment what that leads to, such as a token of yours", "mv it into .devcontainer")
		}
		if _, err := integrations.ReadText(file); err != nil {
			return c.breaks(setting, "--env-file "+file+" cannot be read: "+err.Error(), "a file of NAME=VALUE")
		}
		d.mounts = append(d.mounts, map[string]any{"Type": "bind", "Source": file})
	case "--name":
		switch is := strings.TrimPrefix(c.expanded(a.value), "/"); { // the engine takes both for one name
		case is == featureFolder || strings.HasPrefix(is, featureFolder+"-"):
			return c.breaks(setting, "--name "+is+": egressd's own containers have such names", "another name")
		case slices.Contains(c.Machine.Names, is):
			return c.breaks(setting, "--name "+is+": by that name you tell a sandbox", "another name")
		}
	}
	return nil
}

// envFile is where a file of --env-file lies. Tools start docker in the workspace.
func (c *checker) envFile(value string) string {
	file := c.expanded(value)
	if strings.HasPrefix(filepath.Clean(file), ".devcontainer/") {
		return c.Folder + "/" + file // with its .., which docker lets the kernel follow
	}
	return file
}

// volume reads SOURCE:TARGET[:OPTIONS].
func (c *checker) volume(text string, d *described) error {
	parts := strings.Split(c.expanded(text), ":")
	if len(parts) == 1 {
		return nil // a new volume
	}
	if err := c.unknown("runArgs", parts[0]); err != nil {
		return err
	}
	m := map[string]any{"Type": "volume", "Source": parts[0], "Destination": parts[1], "RW": true}
	for _, options := range parts[2:] {
		for one := range strings.SplitSeq(options, ",") {
			switch one {
			case "z", "Z":
				m["Mode"] = one
			case "rw", "nocopy", "cached", "delegated", "consistent", "":
			case "ro":
				m["RW"] = false
			default:
				m["Propagation"] = one
			}
		}
	}
	return c.addMount("runArgs", m, boundary.Volume{}, d)
}
