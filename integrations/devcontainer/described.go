package devcontainer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/hostfiles"
	"github.com/egressd/egressd/integrations/jsonc"
)

// harmlessProperties of devcontainer.json say what runs in the container, or how an editor shows it.
const harmlessProperties = `$schema name forwardPorts portsAttributes otherPortsAttributes remoteEnv updateRemoteUserUID
	userEnvProbe overrideCommand shutdownAction init customizations extensions settings devPort waitFor onCreateCommand updateContentCommand postCreateCommand postStartCommand
	postAttachCommand workspaceFolder appPort secrets`

// judgedProperties are looked at elsewhere in this package.
const judgedProperties = "overrideFeatureInstallOrder image build dockerFile context features runArgs mounts workspaceMount dockerComposeFile service runServices"

// harmlessOfFeature are more properties of a Feature, and of the metadata of an image.
const harmlessOfFeature = "version description documentationURL licenseURL keywords options installsAfter deprecated legacyIds entrypoint"

// engineProperties are those that are settings of the container.
var engineProperties = map[string]string{"privileged": "Privileged", "capAdd": "CapAdd", "securityOpt": "SecurityOpt"}

// A described container is what the engine would make of one part of the settings.
type described struct {
	host, config map[string]any
	mounts       []any
	volumes      map[string]boundary.Volume
	style        string // of names in errors
	workspace    string // if it is a folder above the workspace's own
}

func newDescribed(style string) *described {
	return &described{map[string]any{"NetworkMode": "none"}, map[string]any{}, nil, map[string]boundary.Volume{}, style, ""}
}

// judge holds a part of the settings to the table.
func (c *checker) judge(setting string, d *described) error {
	m := *c.Machine
	m.Workspace, m.Doors, m.Volumes = d.workspace, []string{c.SocketFolder, c.Program, filepath.Join(c.Folder, ".devcontainer")}, d.volumes
	if m.Workspace == "" {
		m.Workspace = c.Folder
	}
	m.Own = append(slices.Clone(m.Own), c.SocketFolder)
	if setting == workspaceMount && hostfiles.ResolveLinks(m.Workspace) == hostfiles.ResolveLinks(c.Folder) { // its settings are mounted read-only in their place
		m.Own = slices.DeleteFunc(m.Own, func(own string) bool { return hostfiles.InFolder(own, filepath.Join(c.Folder, ".devcontainer")) })
	}
	for _, b := range boundary.Judge(boundary.Description{"HostConfig": d.host, "Config": d.config, "Mounts": d.mounts}, &m) {
		return c.breaks(setting, b.As(d.style)+": "+b.Why, b.Instead)
	}
	return nil
}

// known judges what settings, a Feature or an image say of the container, and refuses properties that are not known.
func (c *checker) known(said map[string]any) error {
	return c.properties("", said, harmlessProperties+" "+judgedProperties)
}

func (c *checker) properties(of string, said map[string]any, harmless string) error {
	d := newDescribed("json")
	for _, name := range slices.Sorted(maps.Keys(said)) {
		value := said[name]
		setting := strings.TrimSpace(of + " " + name)
		field := engineProperties[name]
		switch {
		case field != "" && value != false && value != nil:
			if name == "privileged" {
				value = true // tools take an empty list or object for it, too
			} else if _, isList := value.([]any); !isList {
				return c.breaks(setting, "it is no list", `"`+name+`": ["NAME"]`)
			}
			d.host[field] = value
			for _, one := range words(value) {
				if err := c.netAdmin(setting, one); name == "capAdd" && err != nil {
					return err
				}
			}
			if err := c.judge(setting, d); err != nil {
				return err
			}
			delete(d.host, field)
		case (name == "remoteUser" || name == "containerUser" || name == "id" && of != "") && value != nil:
			if text, isText := value.(string); !isText || !plainName().MatchString(text) {
				return c.breaks(setting, fmt.Sprintf("%.60q: tools write it into a Dockerfile, where it would be more than a name", fmt.Sprint(value)), "a name of letters, digits, dots and dashes")
			}
		case name == "containerEnv":
			if err := c.environment(setting, value); err != nil {
				return err
			}
		case field != "" || value == nil || slices.Contains(strings.Fields(harmless), name):
		case name == "initializeCommand":
			return c.breaks(setting, "it runs on this machine, outside of the container, and whoever can change the project can change it", "leave it out, and type the command yourself")
		case name == "hostRequirements":
			if err := c.requirements(setting, value); err != nil {
				return err
			}
		default:
			return c.breaks(setting, "egressd does not know it, nor whether it leads out", "leave it out")
		}
	}
	return nil
}

// environment refuses what would be more than a variable. Tools write ENV NAME="VALUE" into the Dockerfile that has the Features, and a
// further line there is an instruction, such as LABEL.
func (c *checker) environment(setting string, value any) error {
	all, isObject := value.(map[string]any)
	if !isObject {
		return c.breaks(setting, "it is no object", `"containerEnv": {"NAME": "VALUE"}`)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text, isText := all[name].(string)
		if !isText || strings.ContainsAny(text, "\r\n") || !variableName().MatchString(name) {
			return c.breaks(setting, fmt.Sprintf("%.60q: tools write it into a Dockerfile, where it would be more than a variable", name), "a name of letters, digits and underscores, and a text of one line")
		}
	}
	return nil
}

var variableName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`) })

// plainName is a name that tools write into a Dockerfile: of a Feature, or of a user, whom a variable may name.
var plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.:/@${}-]*$`) })

// requirements are of the machine. By gpu the container gets its devices.
func (c *checker) requirements(setting string, value any) error {
	needs, isObject := value.(map[string]any)
	if !isObject {
		return c.breaks(setting, "it is no object", `"hostRequirements": {"cpus": 2}`)
	}
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		switch {
		case slices.Contains([]string{"cpus", "memory", "storage"}, name) || name == "gpu" && (needs[name] == nil || needs[name] == false):
		case name == "gpu":
			return c.breaks(setting, "gpu: devices lead out of a container", "leave gpu out")
		default:
			return c.breaks(setting, name+": egressd does not know it, nor whether it leads out", "leave it out")
		}
	}
	return nil
}

// netAdmin is over a network that leads nowhere, and wanted where the container captures.
func (c *checker) netAdmin(setting, name string) error {
	if strings.TrimPrefix(strings.ToUpper(name), "CAP_") != "NET_ADMIN" || c.Captured && setting == "runArgs" {
		return nil
	}
	return c.breaks(setting, "the container would have CAP_NET_ADMIN", "leave it out; egressd init devcontainer --transparent, to capture what is sent")
}

func (c *checker) mounts(said map[string]any) error {
	mounts, _ := said["mounts"].([]any)
	for _, m := range mounts {
		if err := c.oneMount("mounts", m); err != nil {
			return err
		}
		if at := c.covers(said, m); at != "" {
			return c.breaks("mounts", "the target "+at+" is that of a mount of egressd's, and tools take the last one", "another target")
		}
	}
	if err := c.user(said); err != nil {
		return err
	}
	if said[workspaceMount] == nil {
		return c.oneMount(workspaceMount, "source=${localWorkspaceFolder},target="+usualInside+",type=bind")
	}
	return c.oneMount(workspaceMount, said[workspaceMount])
}

// covers returns the target of one of egressd's own mounts if another mount has it, too.
func (c *checker) covers(said map[string]any, m any) string {
	inside := c.inside(said)
	text, isText := m.(string)
	if object, ok := m.(map[string]any); ok {
		text = fmt.Sprintf("target=%v", object["target"])
	}
	for _, own := range c.Options.mounts() {
		for _, at := range mountTargets(inside.Replace(c.expanded(own))) {
			same := func(target string) bool { return path.Clean(target) == path.Clean(at) }
			if slices.ContainsFunc(mountTargets(inside.Replace(c.expanded(text))), same) && !(isText && text == own) {
				return at
			}
		}
	}
	return ""
}

// user has to be root in a container that captures.
func (c *checker) user(said map[string]any) error {
	if user, _ := said["containerUser"].(string); c.Captured && user != "" && user != "root" && user != "0" {
		return c.breaks("containerUser", user+" cannot capture what is sent", `"containerUser": "root", with "remoteUser": "`+user+`"; or egressd init devcontainer without --transparent`)
	}
	return nil
}

func (c *checker) oneMount(setting string, m any) error {
	d := newDescribed("json")
	switch m := m.(type) {
	case string:
		if err := c.mount(setting, m, d); err != nil {
			return err
		}
	case map[string]any:
		var fields []string
		for _, name := range slices.Sorted(maps.Keys(m)) {
			value, isText := m[name].(string)
			switch {
			case !slices.Contains([]string{"type", "source", "target"}, name):
				return c.breaks(setting, name+": a mount that is an object has type, source and target, and tools read no more of it", "a mount that is a text, such as \"source=FOLDER,target=/PATH,type=bind,readonly\"")
			case !isText || strings.Contains(value, ","):
				return c.breaks(setting, fmt.Sprintf("%s: %v would be several options of a mount", name, m[name]), "a text without commas")
			}
			fields = append(fields, name+"="+value)
		}
		if err := c.mount(setting, strings.Join(fields, ","), d); err != nil {
			return err
		}
	default:
		return c.breaks(setting, "it is no mount", `"source=FOLDER,target=/PATH,type=bind"`)
	}
	for _, one := range d.mounts {
		mount, _ := one.(map[string]any)
		if source, _ := mount["Source"].(string); setting == workspaceMount && hostfiles.InFolder(c.Folder, source) {
			d.workspace = source
		}
	}
	return c.judge(setting, d)
}

// mount reads a value of --mount: a line of CSV, of NAME=VALUE.
func (c *checker) mount(setting, text string, d *described) error {
	if strings.ContainsAny(text, "\"\r\n") {
		return c.breaks(setting, text+": egressd does not read mounts with quotes or in several lines", "a mount without quotes")
	}
	m := map[string]any{"RW": true, "Type": "volume"}
	options, driver, seen := map[string]string{}, "", map[string]bool{}
	for field := range strings.SplitSeq(c.expanded(text), ",") { // a value may have commas in it
		name, value, has := strings.Cut(field, "=")
		if err := c.unknown(setting, name); err != nil {
			return err
		}
		part := cmp.Or(map[string]string{"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}[name], name)
		if name != strings.ToLower(strings.TrimSpace(name)) || seen[part] && part != "volume-opt" && part != "volume-label" {
			return c.breaks(setting, field+": readers of mounts differ on a part that is there twice, or not in small letters", "each part once, in small letters")
		}
		seen[part] = true
		switch name {
		case "target", "dst", "destination":
		default:
			if err := c.unknown(setting, value); err != nil {
				return err
			}
		}
		switch name {
		case "type":
			m["Type"] = strings.ToLower(value)
		case "source", "src":
			m["Source"] = value
		case "target", "dst", "destination":
			m["Destination"] = value
		case "readonly", "ro":
			m["RW"] = has && value != "true" && value != "1"
		case "bind-propagation":
			m["Propagation"] = value
		case "volume-opt":
			name, is, _ := strings.Cut(value, "=")
			options[name] = is
		case "volume-driver":
			driver = value
		case "consistency", "volume-nocopy", "volume-label", "tmpfs-size", "tmpfs-mode", "bind-recursive", "external", "":
		default:
			return c.breaks(setting, name+": egressd does not know this part of a mount", "leave it out")
		}
	}
	return c.addMount(setting, m, boundary.Volume{Driver: driver, Options: options}, d)
}

// unknown refuses a variable that has no value before the container is there. Nobody chooses the ID of the dev
// container.
func (c *checker) unknown(setting, text string) error {
	if strings.Contains(strings.ReplaceAll(text, "${devcontainerId}", ""), "${") {
		return c.breaks(setting, text+": what its variable stands for is not known yet", "write the path")
	}
	return nil
}

func (c *checker) addMount(setting string, m map[string]any, v boundary.Volume, d *described) error {
	source, _ := m["Source"].(string)
	if strings.HasPrefix(source, ".") {
		source = filepath.Join(c.Folder, source)
	}
	if filepath.IsAbs(source) {
		source = filepath.Clean(source)
	}
	if m["Type"] == "volume" && !filepath.IsAbs(source) {
		m["Name"] = source
		if c.Volume != nil {
			if is, found := c.Volume(source); found { // the engine takes it as it is, until somebody removes it
				asked := newDescribed(d.style)
				asked.mounts, asked.volumes[source] = []any{m}, v
				if err := c.judge(setting, asked); err != nil {
					return err
				}
				v = is
			}
		}
		d.volumes[source] = v
	} else {
		m["Type"], m["Source"] = typeOf(m["Type"]), source
	}
	d.mounts = append(d.mounts, m)
	for _, path := range []string{source, v.Options["device"]} {
		if filepath.IsAbs(path) {
			if err := c.link(setting, filepath.Clean(path)); err != nil {
				return err
			}
		}
	}
	return nil
}

// typeOf has a volume whose source is a path be a folder of this machine.
func typeOf(kind any) any {
	if kind == "volume" {
		return "bind"
	}
	return kind
}

// features judges what local Features say of the container. Others have not been read. The tools ask a registry about each name of
// the order, from this machine.
func (c *checker) features(said map[string]any) error {
	features, _ := said["features"].(map[string]any)
	order, isList := said["overrideFeatureInstallOrder"].([]any)
	if said["overrideFeatureInstallOrder"] != nil && !isList {
		return c.breaks("overrideFeatureInstallOrder", "it is no list", "leave it out")
	}
	for _, one := range order {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(features)), func(name string) bool { return one == name || one == withoutVersion(name) }) {
			return c.breaks("overrideFeatureInstallOrder", fmt.Sprintf("%.60q is none of the features, and tools ask a registry about it, from this machine", fmt.Sprint(one)), "leave it out")
		}
	}
	return c.eachFeature(features, nil)
}

// withoutVersion is the name of a Feature without :VERSION or @DIGEST.
func withoutVersion(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// ownFeature looks into the folder that egressd writes its Feature to.
func (c *checker) ownFeature(map[string]any) error {
	return c.whole(filepath.Join(filepath.Dir(c.at), featureFolder))
}

func (c *checker) eachFeature(features map[string]any, within []string) error {
	for _, name := range slices.Sorted(maps.Keys(features)) {
		local := strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../")
		if folder := filepath.Join(filepath.Dir(c.at), name); local && hostfiles.Under(folder, filepath.Dir(c.at)) {
			if err := c.whole(folder); err != nil {
				return err
			}
		}
		switch {
		case !plainName().MatchString(name):
			return c.breaks("features", fmt.Sprintf("%.60q: tools write the name into a Dockerfile, where it would be more than one", name), "a name of letters, digits, dots and dashes")
		case name == "./"+featureFolder || slices.Contains(c.Trust, name) || slices.Contains(within, name):
		case !local:
			return c.breaks("features", name+": egressd has not read it; a Feature may mount this machine's files, and be privileged", "leave it out, or look at it, and --trust "+name)
		default:
			if err := c.localFeature(name, within); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole refuses links in the folder of a Feature. The dev container tools copy the folder, links too, and write files of names
// that they know into the copy: where a link of that name leads to, on this machine.
func (c *checker) whole(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // egressd's own is not there yet
		case err != nil:
			return c.breaks("features", err.Error(), "leave it out")
		case !entry.IsDir() && !entry.Type().IsRegular():
			return c.breaks("features", path+" is a link, and the dev container tools write through links of a Feature, on this machine", "put the file itself there")
		}
		return nil
	})
}

// localFeature reads devcontainer-feature.json beside the settings.
func (c *checker) localFeature(name string, within []string) error {
	folder := filepath.Join(filepath.Dir(c.at), name)
	if !hostfiles.Under(hostfiles.ResolveLinks(folder), hostfiles.ResolveLinks(filepath.Dir(c.at))) {
		return c.breaks("features", name+": it lies outside of .devcontainer, where somebody in the container can change it", "mv it into .devcontainer")
	}
	at := filepath.Join(folder, "devcontainer-feature.json")
	if err := c.fixed("features", at); err != nil {
		return err
	}
	text, err := os.ReadFile(at)
	if err != nil {
		return c.breaks("features", name+": "+err.Error(), "leave it out")
	}
	doc, err := jsonc.Parse(text)
	said := map[string]any{}
	if err == nil {
		err = json.Unmarshal(jsonc.Standard(doc.Pack()), &said)
	}
	if err != nil {
		return c.breaks("features", at+": "+err.Error(), "leave it out")
	}
	needs, isObject := said["dependsOn"].(map[string]any)
	if said["dependsOn"] != nil && !isObject {
		return c.breaks("features", at+": dependsOn is no object", "leave it out")
	}
	if err := c.unseen("features", name, said); err != nil {
		return err
	}
	delete(said, "dependsOn")
	if err := c.snippet("features "+name, said); err != nil {
		return err
	}
	return c.eachFeature(needs, append(within, name))
}

// snippet judges the settings of a Feature, or of the metadata of an image.
func (c *checker) snippet(of string, said map[string]any) error {
	if err := c.defaults(of, said); err != nil {
		return err
	}
	mounts, isList := said["mounts"].([]any)
	if said["mounts"] != nil && !isList {
		mounts = []any{said["mounts"]} // tools take one that stands alone
	}
	for _, m := range mounts {
		if err := c.oneMount(of+" mounts", m); err != nil {
			return err
		}
	}
	return c.properties(of, said, harmlessProperties+" "+harmlessOfFeature+" mounts")
}

// metadataLabel is where images have settings of dev containers.
const metadataLabel = "devcontainer.metadata"

// images judges the settings that an image, or those it is built of, bring with them.
func (c *checker) images(said map[string]any) error {
	if image, ok := said["image"].(string); ok {
		if err := c.image("image", image); err != nil {
			return err
		}
	}
	dockerfile := c.dockerfile(said)
	switch {
	case dockerfile == "":
		return nil
	case !slices.Contains(c.Trust, dockerfile):
		return c.readDockerfile(dockerfile)
	case c.replaceable(dockerfileSetting, dockerfile) != "":
		c.hold(dockerfile, true) // it stays what the user has read, if it can be held
	}
	return nil
}

func (c *checker) image(setting, name string) error {
	if slices.Contains(c.Trust, name) {
		return nil
	}
	d := newDescribed("json")
	d.config["Image"] = name
	if err := c.judge(setting, d); err != nil {
		return err
	}
	labels, read := map[string]string(nil), false
	if c.ImageLabels != nil && !strings.Contains(name, "$") {
		labels, read = c.ImageLabels(name)
	}
	if strings.Contains(name, "$") {
		return c.breaks(setting, name+": which image that is depends on how it is built", "write its name; or --trust '"+name+"'")
	}
	if !read {
		return c.breaks(setting, name+": egressd has not read it; the label "+metadataLabel+" of an image may mount this machine's files, and be privileged", "docker pull "+name+"; or --trust "+name)
	}
	for label := range labels {
		if boundary.ReservedLabel(label) && !strings.HasPrefix(label, "com.docker.compose.") {
			return c.breaks(setting, name+" has the label "+label+", by which egressd's scripts find egressd's container", "another image")
		}
		if slices.Contains(c.Machine.Labels, label) {
			return c.breaks(setting, name+" has the label "+label+", by which you tell containers apart", "another image")
		}
	}
	if labels[metadataLabel] == "" {
		return nil
	}
	var all []map[string]any
	if err := json.Unmarshal([]byte(labels[metadataLabel]), &all); err != nil {
		var one map[string]any
		if json.Unmarshal([]byte(labels[metadataLabel]), &one) != nil {
			return c.breaks(setting, name+" has the label "+metadataLabel+", which cannot be read: "+err.Error(), "another image; or --trust "+name)
		}
		all = append(all, one)
	}
	if err := c.unseen(setting, name, all); err != nil {
		return err
	}
	for _, said := range all {
		delete(said, "features") // that are in the image already
		if err := c.snippet(setting+" "+name, said); err != nil {
			return err
		}
	}
	return nil
}

// harmlessOptions are flags of docker build.
var harmlessOptions = []string{"--build-arg", "--no-cache", "--pull", "--platform", "--progress", "--target", "--shm-size", "--memory", "--quiet"}

// build judges how the image is built: what of this machine it reads, and by which flags.
func (c *checker) build(said map[string]any) error {
	build, _ := said["build"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(build)) {
		switch {
		case name == "args":
			args, _ := build[name].(map[string]any)
			for arg := range args {
				if err := c.buildArgument("build.args", arg); err != nil {
					return err
				}
			}
		case slices.Contains([]string{"dockerfile", "context", "target"}, name):
		case name == "cacheFrom":
			all, isList := build[name].([]any)
			if !isList {
				all = []any{build[name]}
			}
			for _, one := range all {
				from := fmt.Sprint(one)
				if strings.ContainsAny(strings.TrimPrefix(from, "type=registry,ref="), "=,") {
					return c.breaks("build.cacheFrom", from+": a cache is an image of a registry", "leave it out, or write its name")
				}
			}
		case name == "options":
			if err := c.buildOptions(words(build[name])); err != nil {
				return err
			}
		default:
			return c.breaks("build."+name, "egressd does not know it, nor whether it leads out", "leave it out")
		}
	}
	d := newDescribed("json")
	for _, place := range []any{build["context"], said["context"]} {
		if path, ok := place.(string); ok {
			if path = c.expanded(path); !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(c.at), path)
			}
			if at := c.replaceable("build.context", filepath.Clean(path)); at != "" && !c.hold(filepath.Clean(path), false) {
				return c.breaks("build.context", path+" lies in "+at+": somebody in the container can put a link in its place, and the next build gets what that leads to, such as keys of yours", "the workspace itself, or a folder in .devcontainer")
			}
			d.mounts = append(d.mounts, map[string]any{"Type": "bind", "Source": path})
		}
	}
	if dockerfile := c.dockerfile(said); dockerfile != "" {
		d.mounts = append(d.mounts, map[string]any{"Type": "bind", "Source": dockerfile})
	}
	project := cmp.Or(gitRoot(c.Folder), c.Folder)
	for _, m := range d.mounts {
		mount, _ := m.(map[string]any)
		if path, _ := mount["Source"].(string); !hostfiles.Under(hostfiles.ResolveLinks(path), hostfiles.ResolveLinks(project)) {
			return c.breaks("build", path+" lies outside of the project: a build has the engine's network, and can send it anywhere", "copy what it needs into the project")
		}
	}
	return c.judge("build", d)
}

// localVariable is a variable of this machine in a setting.
var localVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{(?:localEnv|env):([^:}]*)`) })

// harmlessVariables of the user's environment say who and where the user is, and no more.
const harmlessVariables = "HOME USER LOGNAME USERNAME USERPROFILE PATH SHELL LANG TERM TZ TMPDIR"

// unseen refuses other variables of the user's environment in a Feature, or in the metadata of an image. The tools put them into the
// container, and egressd shows the user neither. A variable that is not set now may be set when the container starts.
func (c *checker) unseen(setting, name string, said any) error {
	text, err := json.Marshal(said)
	if err != nil {
		return err
	}
	for _, f := range localVariable().FindAllStringSubmatch(string(text), -1) {
		if !slices.Contains(strings.Fields(harmlessVariables), f[1]) {
			return c.breaks(setting, name+": it takes "+f[1]+" of your environment into the container", "leave it out; or look at it, and --trust "+name)
		}
	}
	return nil
}

// insideProperties are those whose values stay in the container. Tools and the engine send values of others on: registries get the
// names of images and Features, and steps of a build have the engine's network.
const insideProperties = `containerEnv remoteEnv runArgs mounts workspaceMount workspaceFolder name onCreateCommand updateContentCommand postCreateCommand
	postStartCommand postAttachCommand`

// spills refuses secrets of the user's environment in other settings.
func (c *checker) spills(said map[string]any) error {
	for _, setting := range slices.Sorted(maps.Keys(said)) {
		if slices.Contains(strings.Fields(insideProperties), setting) {
			continue
		}
		text, err := json.Marshal(said[setting])
		if err != nil {
			return err
		}
		for _, f := range localVariable().FindAllStringSubmatch(string(text), -1) {
			if _, is := c.variable(f[1]); is && boundary.IsSecretVariable(f[1]) {
				return c.breaks(setting, "it has "+f[1]+" of your environment, which a build or a tool may send anywhere", "leave it out, or unset "+f[1])
			}
		}
	}
	return nil
}

func (c *checker) buildOptions(options []string) error {
	valued, before := false, ""
	for _, word := range options {
		name, value, has := strings.Cut(word, "=")
		if before == "--build-arg" {
			value = word
		}
		if before == "--build-arg" || name == "--build-arg" {
			arg, _, given := strings.Cut(c.expanded(value), "=")
			if _, is := c.variable(arg); !given && is && boundary.IsSecretVariable(arg) {
				return c.breaks("build.options", "it has "+arg+" of your environment, which the build may send anywhere", "leave it out, or unset "+arg)
			}
			if err := c.buildArgument("build.options", arg); err != nil {
				return err
			}
		}
		before = ""
		switch {
		case valued:
			valued = false
		case !slices.Contains(harmlessOptions, name):
			return c.breaks("build.options", word+": egressd does not know this flag of docker build, nor whether it leads out", "leave it out")
		default:
			if valued = !has && !slices.Contains([]string{"--no-cache", "--pull", "--quiet"}, name); valued {
				before = name
			}
		}
	}
	return nil
}
