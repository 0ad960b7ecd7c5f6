package boundary

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/hostfiles"
	"github.com/egressd/egressd/internal/mounttable"
)

// mounts judges the list Mounts: what the engine mounts, with sources and targets of this machine.
func (j *judge) mounts(value any) {
	list, _ := value.([]any)
	for _, one := range list {
		m, _ := one.(map[string]any)
		source, target := text(m["Source"]), text(m["Destination"])
		writable, _ := m["RW"].(bool)
		writable = writable || relabels(text(m["Mode"]))
		if p := text(m["Propagation"]); !slices.Contains([]string{"", "private", "rprivate", "slave", "rslave"}, p) {
			j.refuse(source+" "+p, "what is mounted inside would appear on the host", leaveOut)
		}
		switch kind := text(m["Type"]); kind {
		case "bind":
			j.bind(source, target, writable)
		case "volume":
			j.volume(text(m["Name"]), text(m["Driver"]))
		case "tmpfs", "image":
		default:
			j.refuse(kind+" "+target, "egressd does not know what it brings in", "a mount of the type bind, volume or tmpfs")
		}
		j.replaceable(m, list)
		j.beside(m, list)
	}
}

// relabels reports whether the engine gives the files of a mount other labels of SELinux, which are there for the host then, too.
func relabels(mode string) bool {
	flags := strings.Split(mode, ",")
	return slices.Contains(flags, "z") || slices.Contains(flags, "Z")
}

func (j *judge) bind(source, target string, writable bool) {
	if slices.Contains(j.machine.Doors, source) {
		if writable && !isSocketFile(source) {
			j.refuse(source, "the container could replace what is egressd's in there, for other containers and for you", "mount it read-only: "+source+":TARGET:ro")
		}
		return
	}
	if !filepath.IsAbs(source) {
		j.refuse(source, "egressd cannot tell what of this machine that is", "write the whole path")
		return
	}
	if why, instead := j.machine.JudgePath(source, writable); why != "" {
		j.refuse(source, why, instead)
	}
}

// replaceable refuses a source that lies in another mount, which the container can write: a program puts a link in its
// place, and at the next start the engine mounts what the link leads to. A restart policy is enough for that.
func (j *judge) replaceable(m map[string]any, list []any) {
	source := j.machine.folderOf(m)
	if source == "" || slices.Contains(j.machine.Doors, source) || text(m["Destination"]) == "" { // what is read at the start is no mount
		return
	}
	if folder := j.machine.replacedIn(source, list); folder != "" {
		j.refuse(source, "it lies in "+folder+", which the container can write: a program can put a link in its place, and the next start mounts what that leads to", "mount it where it is in that mount, or that mount read-only, or a folder beside it")
	}
}

// beside refuses a source if another running sandbox can put a link in its place. It also refuses a folder in which this
// container could put a link in the place of another sandbox's source: a restart policy may start that sandbox again.
func (j *judge) beside(m map[string]any, list []any) {
	source := j.machine.folderOf(m)
	if source == "" || slices.Contains(j.machine.Doors, source) {
		return
	}
	for _, n := range j.machine.Neighbours {
		if folder := j.machine.replacedIn(source, n.Mounts); folder != "" && !j.runs {
			j.refuse(source, "it lies in "+folder+", which the container "+n.Name+" can write: a program there can put a link in its place before this container starts", "docker stop "+n.Name+", or mount a folder beside "+folder)
		}
		for _, one := range n.Mounts {
			its, _ := one.(map[string]any)
			if other := j.machine.folderOf(its); other != "" && j.machine.replacedIn(other, list) == source {
				j.refuse(source, "the container "+n.Name+" mounts "+other+": this one could put a link in its place, and the next start of "+n.Name+" mounts what that leads to", "mount "+other+" where it is in "+source+", or "+source+" read-only, or docker stop "+n.Name)
			}
		}
	}
}

// replacedIn returns the folder among mounts in which a program can put a link in the place of a source, or "".
func (p *Machine) replacedIn(source string, mounts []any) string {
	for _, one := range mounts {
		outer, _ := one.(map[string]any)
		writable, _ := outer["RW"].(bool)
		folder := p.folderOf(outer)
		if writable && folder != "" && hostfiles.ThroughFolder(source, folder) && (p.Loose || !p.held(source, outer, mounts)) {
			return folder
		}
	}
	return ""
}

// Writes reports whether mounts let a container write in a folder of this machine, or in one around it.
func (p *Machine) Writes(folder string, mounts []any) bool {
	return slices.ContainsFunc(mounts, func(one any) bool {
		m, _ := one.(map[string]any)
		writable, _ := m["RW"].(bool)
		at := p.folderOf(m)
		return writable && at != "" && meet(hostfiles.ResolveLinks(at), hostfiles.ResolveLinks(folder))
	})
}

// held reports whether each folder on the way from a writable mount to a source, and the source itself, is a mount in its
// place. The kernel replaces and renames none on which something is mounted (EBUSY), in the namespace of that mount.
func (p *Machine) held(source string, outer map[string]any, list []any) bool {
	steps := Steps(p.folderOf(outer), text(outer["Destination"]), source)
	return len(steps) > 0 && !slices.ContainsFunc(steps, func(s Step) bool {
		return !slices.ContainsFunc(list, func(one any) bool {
			m, _ := one.(map[string]any)
			return p.folderOf(m) == s.Source && filepath.Clean(text(m["Destination"])) == s.Destination
		})
	})
}

// IsLoose reports whether an engine lets programs make namespaces of users, by what it says of itself: its options of security
// ("name=seccomp,profile=builtin"). The default filter of Podman does.
func IsLoose(options []string, isPodman bool) bool {
	return isPodman || !slices.ContainsFunc(options, func(o string) bool {
		return o == "name=seccomp,profile=default" || o == "name=seccomp,profile=builtin"
	})
}

// A Step is a mount of a file or folder where another mount has it.
type Step struct{ Source, Destination string }

// Steps are the mounts that hold a source in its place: of each folder between a mounted folder and the source, and of the
// source. There are none if the source does not lie there, or behind a link.
func Steps(folder, destination, source string) (all []Step) {
	rest, inside := strings.CutPrefix(source, strings.TrimSuffix(folder, "/")+"/")
	if !inside || hostfiles.ResolveLinks(source) != filepath.Join(hostfiles.ResolveLinks(folder), rest) {
		return nil
	}
	at := ""
	for name := range strings.SplitSeq(rest, "/") {
		at = filepath.Join(at, name)
		all = append(all, Step{filepath.Join(folder, at), filepath.Join(destination, at)})
	}
	return all
}

// folderOf returns the folder of this machine that a mount or a volume is, or "".
func (p *Machine) folderOf(m map[string]any) string {
	folder := text(m["Source"])
	if text(m["Type"]) == "volume" { // the engine's own folder otherwise
		folder = p.Volumes[text(m["Name"])].Options["device"]
	}
	if !filepath.IsAbs(folder) {
		return ""
	}
	return filepath.Clean(folder)
}

// JudgePath returns why a container may not have a path of this machine, or "". A read-only mount may
// have programs of the host, but nothing that leads out. Other names of the same place count, too.
func (p *Machine) JudgePath(source string, writable bool) (why, instead string) {
	climbs := hostfiles.Climbs(source, p.Workspace)
	source = filepath.Clean(source)
	if why, instead = p.judgeName(source, writable); why != "" {
		return why, instead
	}
	if climbs {
		return "programs differ on where .. leads, behind a link or what the container could make one", "write the path without .."
	}
	real := hostfiles.ResolveLinks(source)
	inWorkspace := p.Workspace != "" && hostfiles.Under(real, hostfiles.ResolveLinks(p.Workspace))
	for _, name := range p.otherNames(real) {
		if why, instead = p.judgeName(name, writable && !inWorkspace); why != "" {
			return "it is, or has in it, " + name + " under another name: " + why, instead
		}
	}
	return "", ""
}

func (p *Machine) judgeName(source string, writable bool) (why, instead string) {
	real := hostfiles.ResolveLinks(source)
	switch {
	case hostfiles.Leads(source, p.Home) || p.isSocket(real):
		return "it is, or has in it, a way out: a socket of somebody who acts for who asks, or a device", "leave it out, or mount what is needed of it alone"
	case slices.ContainsFunc(p.Engines, func(folder string) bool { return meet(hostfiles.ResolveLinks(folder), real) }):
		return "an engine keeps containers and volumes there, such as the one with egressd's log", "leave it out, or mount a volume"
	case p.holdsOwn(real) != "":
		return "it has in it, or lies in, what is egressd's: " + p.holdsOwn(real), "leave it out, or mount folders beside it"
	case p.isSecret(real):
		return "keys, passwords or sessions of yours or of this machine lie there", "leave it out, or mount what is needed of it alone; egressd adds credentials to requests (egressd help secrets)"
	case writable && (!p.mayWrite(real) || p.holdsProgram(real)):
		return "the container could write what the host executes or reads later", "mount it read-only, or a folder of the project, of /srv, or a volume"
	}
	return "", ""
}

// otherNames are the other paths of this machine by which a program reaches a path, or files below it. File systems may be mounted twice. Only mounts that lie
// as high up give other names: where / is mounted at /mnt/all, too, /home is a name of /mnt/all/home, and not the other way round.
func (p *Machine) otherNames(real string) (all []string) {
	own := mounttable.Mount{}
	for _, m := range p.Mounts {
		if hostfiles.Under(real, m.Point) && len(m.Point) >= len(own.Point) { // the last one of several in one place
			own = m
		}
	}
	add := func(m mounttable.Mount, place string) {
		for _, o := range p.Mounts {
			name := o.Point
			if rest, in := strings.CutPrefix(place, strings.TrimSuffix(o.Root, "/")); in && (rest == "" || rest[0] == '/') {
				name = filepath.Join(o.Point, rest)
			} else if !hostfiles.Under(o.Root, place) {
				continue
			}
			if o.Device == m.Device && depth(o.Point) <= depth(m.Point) && !hostfiles.Under(name, real) {
				all = append(all, name)
			}
		}
	}
	add(own, filepath.Join(own.Root, strings.TrimPrefix(real, strings.TrimSuffix(own.Point, "/"))))
	for _, m := range p.Mounts {
		if m.Point != real && hostfiles.Under(m.Point, real) {
			add(m, m.Root)
		}
	}
	return all
}

func depth(path string) int { return strings.Count(strings.TrimSuffix(path, "/"), "/") }

// isSocketFile reports whether a file is a socket. To write to it changes no file.
func isSocketFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

// isSocket reports whether a file is a socket, whatever its name, or holds one that the machine names.
func (p *Machine) isSocket(real string) bool {
	return isSocketFile(real) || slices.ContainsFunc(p.Sockets, func(s string) bool { return hostfiles.Under(hostfiles.ResolveLinks(s), real) })
}

func (p *Machine) holdsProgram(real string) bool {
	return slices.ContainsFunc(p.Programs, func(one string) bool { return meet(hostfiles.ResolveLinks(one), real) })
}

func (p *Machine) holdsOwn(real string) string {
	for _, own := range p.Own {
		if meet(hostfiles.ResolveLinks(own), real) {
			return own
		}
	}
	return ""
}

// meet reports whether one path is, holds, or lies in the other.
func meet(a, b string) bool { return hostfiles.Under(a, b) || hostfiles.Under(b, a) }

// systemFolders hold programs of the system, or files that those read. Other folders of the root are for data.
const systemFolders = "bin boot dev efi etc gnu home init lib lib32 lib64 libx32 lost+found nix opt proc root run sbin snap sys usr var Library System Users Applications private"

// homeFolders are folders of a home that hold programs, or what systems start by themselves.
var homeFolders = []string{"bin", "sbin", "go", "snap", "Library", "Applications"}

// dataFolders are for data all the same.
var dataFolders = []string{"/var/tmp", "/dev/shm"}

// mayWrite is the list of what a container may write: the workspace, folders for data, and folders of a home whose
// names say nothing to programs. Where the workspace is known, other repositories of git are not among these:
// whoever works in one executes its hooks and configuration.
func (p *Machine) mayWrite(real string) bool {
	if p.Workspace != "" && hostfiles.Under(real, hostfiles.ResolveLinks(p.Workspace)) && !p.holdsHome(p.Workspace) {
		return true
	}
	if p.Workspace != "" && gitAbove(real) != "" || p.holdsHome(real) {
		return false
	}
	home := hostfiles.ResolveLinks(p.Home)
	if rest, ok := strings.CutPrefix(real, "/home/"); ok && !hostfiles.Under(real, home) {
		user, _, _ := strings.Cut(rest, "/")
		home = "/home/" + user
	}
	if below, in := strings.CutPrefix(real, home+"/"); in && filepath.IsAbs(home) && home != "/" {
		first, _, _ := strings.Cut(below, "/")
		return first[0] != '.' && !isOneOf(homeFolders, first)
	}
	if below, in := strings.CutPrefix(real+"/", "/mnt/"); in { // where Windows has its disks: C: is /mnt/c
		disk, _, _ := strings.Cut(below, "/")
		return len(disk) > 1 && !strings.HasPrefix(disk, "wsl")
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(real, "/"), "/")
	return first != "" && !isOneOf(strings.Fields(systemFolders), first) || slices.ContainsFunc(dataFolders, func(f string) bool { return hostfiles.Under(real, f) })
}

// isOneOf compares as file systems do that take upper and lower case as the same.
func isOneOf(names []string, name string) bool {
	return slices.ContainsFunc(names, func(one string) bool { return strings.EqualFold(one, name) })
}

// holdsHome reports whether a folder is, or holds, the home of the user: shells and services start from there.
func (p *Machine) holdsHome(folder string) bool {
	return filepath.IsAbs(p.Home) && hostfiles.Under(hostfiles.ResolveLinks(p.Home), hostfiles.ResolveLinks(folder))
}

// gitAbove returns the repository that a folder lies in, is, or has directly in it, or "".
func gitAbove(folder string) string {
	for at := folder; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	below, _ := filepath.Glob(filepath.Join(Globbed(folder), "*", ".git")) // the pattern is sound
	if len(below) > 0 {
		return filepath.Dir(below[0])
	}
	return ""
}

// Globbed has no character that Glob reads as a pattern.
func Globbed(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// volume judges a named volume, or one without a name.
func (j *judge) volume(name, driver string) {
	v := j.machine.Volumes[name]
	if v.Driver == "" {
		v.Driver = driver
	}
	switch {
	case slices.Contains(j.machine.Mine, name) || isOwnVolume(name):
		j.refuse(name, "that volume is egressd's own", "a volume of your own, under another name")
	case v.Unknown:
		j.refuse(name, "it is made elsewhere: nothing here can tell whether it is a folder of this machine or of another one", "a volume of the project's own, without external and name")
	case v.Driver != "" && v.Driver != "local":
		j.refuse(name+" "+v.Driver, "the volume may be of another machine", "the driver local")
	}
	j.options(name+" ", v.Options)
}

// isOwnVolume reports whether a volume has the name of one with egressd's state, of any project: those of egressd init
// compose and init docker.
func isOwnVolume(name string) bool {
	return name == "egressd-state" || strings.HasSuffix(name, "_egressd-state") || strings.HasPrefix(name, "egressd-") && strings.HasSuffix(name, "-state")
}

func (j *judge) volumeOptions(value any) {
	all, _ := value.(map[string]any)
	options := make(map[string]string)
	for name, v := range all {
		options[name] = fmt.Sprint(v)
	}
	j.options("", options)
}

// options takes those by which the driver local makes a tmpfs, or mounts a folder that a bind mount could be.
func (j *judge) options(before string, options map[string]string) {
	kind, device := options["type"], options["device"]
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains([]string{"type", "device", "o", "size"}, name) {
			j.refuse(before+name, "egressd does not know this option of a volume", leaveOut)
			return
		}
	}
	flags := strings.Split(options["o"], ",")
	binds := slices.Contains(flags, "bind") || slices.Contains(flags, "rbind")
	folder := (kind == "none" || kind == "") && filepath.IsAbs(device) && binds
	if !folder && !(kind == "" && device == "") && !(kind == "tmpfs" && !binds) {
		j.refuse(strings.TrimSpace(before+kind+" "+device), "the volume may be of another machine, or a device", "the type tmpfs, or none with o: bind and a folder")
		return
	}
	for _, flag := range flags {
		if name, _, _ := strings.Cut(flag, "="); !slices.Contains([]string{"", "bind", "rbind", "ro", "rw", "private", "rprivate", "size", "uid", "gid", "mode"}, name) {
			j.refuse(before+"o "+flag, "egressd does not know this option of a volume", leaveOut)
			return
		}
	}
	if folder {
		if why, instead := j.machine.JudgePath(device, !slices.Contains(flags, "ro")); why != "" {
			j.refuse(before+device, why, instead)
		}
	}
}
