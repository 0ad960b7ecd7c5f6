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

// A composeInput is a file or folder that Compose reads at its next start for a service.
type composeInput struct {
	path    string // absolute; where that is not known, as it is written
	known   bool
	isBuild bool // the image is built of it
}

// harmlessBuildKeys are keys of build that give it no more than the engine's network, which every
// build has. A file of this machine that the build reads is judged as a mount.
const harmlessBuildKeys = `additional_contexts args context dockerfile dockerfile_inline extra_hosts labels no_cache no_cache_filter platforms provenance pull
	sbom shm_size target ulimits`

// build judges how the image of a service is made, and notes of what.
func (j *composeJudge) build(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		if j.hasOneReading("build", n.Value) {
			j.context(n.Value, "")
		}
		return
	}
	keys := j.only("build", n, harmlessBuildKeys+" network privileged entitlements ssh tags secrets cache_from isolation")
	value := func(key string) *yaml.Node {
		n := keys[key]
		return resolved(&n)
	}
	for _, one := range []struct{ key, why string }{
		{"privileged", "its steps would be root of the host"}, {"entitlements", "its steps could have the network and the rights of the host"},
		{"ssh", "its steps have the engine's network, and would have your ssh agent"}, {"isolation", "egressd does not know what another isolation holds"},
	} {
		if n := value(one.key); !isNothing(n) && n.Value != "false" {
			j.problem("has build.%s %s: %s; leave it out", one.key, strings.TrimSpace(strings.Join(append(keysOf(n), n.Value), " ")), one.why)
		}
	}
	if n := value("network"); !isNothing(n) && !slices.Contains([]string{"", "none", "default"}, n.Value) {
		j.problem("has build.network %s: its steps would have that network; leave it out, or write none", n.Value)
	}
	for _, from := range valuesOf(value("cache_from")) {
		if strings.ContainsAny(strings.TrimPrefix(from, "type=registry,ref="), "=,$") {
			j.problem("has build.cache_from %s: a cache is an image of a registry; write its name", from)
		}
	}
	if n := value("secrets"); !isNothing(n) {
		j.buildSecrets(n)
	}
	j.buildArguments(value("args"))
	j.service.tags = append(j.service.tags, valuesOf(value("tags"))...)
	j.service.builds = true
	if folder, dockerfile := value("context").Value, value("dockerfile").Value; j.hasOneReading("build.context", folder) && j.hasOneReading("build.dockerfile", dockerfile) {
		j.context(folder, dockerfile)
	}
	j.moreContexts(value("additional_contexts"))
}

// hasOneReading refuses a path of a build that Compose and BuildKit's client read differently. The client takes ${…} and %{…} of what
// Compose has read for a template of its own, and a scheme such as cwd:// for a path that begins where somebody starts up.sh.
func (j *composeJudge) hasOneReading(key, place string) bool {
	switch {
	case isTemplate(place):
		j.problem("has %s %s: Compose and BuildKit's client may read that as two paths; write it without $$ and %%{", key, place)
	case strings.Contains(place, "://") && !isRemote(place):
		j.problem("has %s %s: egressd does not know this scheme, nor what of this machine it reads; write a path", key, place)
	default:
		return true
	}
	return false
}

// isTemplate reports whether BuildKit's client may find a template in a text of a compose file.
func isTemplate(text string) bool {
	return strings.Contains(text, "$$") || strings.Contains(text, "%{")
}

// buildArguments refuses secrets of the user's environment in the form NAME, which takes the value from there.
func (j *composeJudge) buildArguments(n *yaml.Node) {
	if isNothing(n) {
		return
	}
	for name, value := range named(plain(n)) {
		if _, is := j.environ(name); is && boundary.IsSecretVariable(name) && (value == nil || value == "") {
			j.problem("has build.args %s of your environment: a build has the engine's network, and can send it anywhere; leave it out, or unset %s", name, name)
		}
	}
}

// insideKeys are keys whose values stay in the container. Of others the engine, or Compose, sends some on: a name of an image
// to its registry, arguments of a build to its steps, which have the engine's network.
const insideKeys = "environment command entrypoint healthcheck"

// spills refuses secrets of the user's environment in a key, by their names.
func (j *composeJudge) spills(key string, n *yaml.Node) {
	if slices.Contains(strings.Fields(insideKeys), key) || strings.HasPrefix(key, "x-") {
		return
	}
	for _, name := range variablesIn(n) {
		if _, is := j.environ(name); is && boundary.IsSecretVariable(name) {
			j.problem("has %s with %s of your environment, which may be sent on, past every network of the container; leave it out, or unset %s", key, name, name)
		}
	}
}

// variablesIn are the names after dollar signs.
func variablesIn(n *yaml.Node) (all []string) {
	if n = resolved(n); n.Kind == yaml.ScalarNode {
		for _, part := range strings.Split(n.Value, "$")[1:] {
			part = strings.TrimPrefix(part, "{")
			end := 0
			for end < len(part) && isWord(part[end]) {
				end++
			}
			all = append(all, part[:end])
		}
	}
	for _, one := range n.Content {
		all = append(all, variablesIn(one)...)
	}
	return all
}

// buildSecrets are files, which are judged as those that the image is built of, or variables.
func (j *composeJudge) buildSecrets(n *yaml.Node) {
	for _, one := range n.Content {
		name, target := resolved(one).Value, ""
		if resolved(one).Kind == yaml.MappingNode {
			keys := j.only("build.secrets", resolved(one), "source target uid gid mode")
			source, at := keys["source"], keys["target"]
			name, target = resolved(&source).Value, resolved(&at).Value
		}
		given := j.file.Secrets[name]
		keys := j.only("secrets."+name, resolved(&given), "file environment name labels")
		file, variable := keys["file"], keys["environment"]
		switch {
		case !isNothing(&variable):
			j.problem("has build.secrets %s, of your environment: a build has the engine's network; leave it out", name)
		case strings.ContainsAny(name+target+resolved(&file).Value, ",\"\r\n") || isTemplate(name+target):
			j.problem("has build.secrets %s: BuildKit's client would read the rest of its name or path as further settings; write it without commas and quotes", name)
		case !isNothing(&file) && j.hasOneReading("build.secrets "+name, resolved(&file).Value):
			j.builtOf(resolved(&file).Value)
		}
	}
}

// context notes the folder that an image is built of, and the Dockerfile, which may lie outside of it.
func (j *composeJudge) context(folder, dockerfile string) {
	j.service.builds = true
	if strings.HasPrefix(folder, "git@") || strings.HasPrefix(folder, "ssh://") {
		j.problem("has build.context %s: a build of it gets your ssh agent, and the engine's network; fetch it into the project", folder)
	}
	context := composeInput{}
	if !isRemote(folder) {
		context = j.builtOf(folder)
	}
	switch {
	case dockerfile == "":
	case strings.HasPrefix(dockerfile, "$") || filepath.IsAbs(dockerfile):
		j.input(dockerfile, true)
	case context.known:
		j.input(filepath.Join(context.path, dockerfile), true)
	}
}

// moreContexts are NAME=PLACE in a list, or a mapping.
func (j *composeJudge) moreContexts(n *yaml.Node) {
	var places map[string]string
	if n.Kind != yaml.MappingNode || n.Decode(&places) != nil {
		places = make(map[string]string)
		for _, one := range valuesOf(n) {
			name, place, _ := strings.Cut(one, "=")
			places[name] = place
		}
	}
	for _, name := range slices.Sorted(maps.Keys(places)) {
		place := places[name]
		if j.hasOneReading("build.additional_contexts", place) && !isRemote(place) && !strings.HasPrefix(place, "service:") {
			j.builtOf(place)
		}
	}
}

// isRemote reports whether a build fetches a place.
func isRemote(place string) bool {
	return slices.ContainsFunc([]string{"https://", "http://", "git://", "ssh://", "docker-image://", "git@"}, func(p string) bool { return strings.HasPrefix(place, p) })
}

// envFiles are one file, or a list of names or of {path: NAME}. Their lines become variables of the container.
func (j *composeJudge) envFiles(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		j.input(n.Value, false)
		return
	}
	for _, one := range n.Content {
		one = resolved(one)
		if one.Kind == yaml.MappingNode {
			path := j.only("env_file", one, "path required format")["path"]
			one = resolved(&path)
		}
		j.input(one.Value, false)
	}
}

// input notes a file or folder that Compose reads, and has it judged as if it were mounted: what is built of it, or
// started with it, can read it.
func (j *composeJudge) input(place string, isBuild bool) composeInput {
	text, known := j.expanded(place)
	if known {
		text = j.absolute(text)
		j.service.mounted = append(j.service.mounted, map[string]any{"Type": "bind", "Source": text})
	}
	in := composeInput{text, known, isBuild}
	if !slices.Contains(j.service.inputs, in) {
		j.service.inputs = append(j.service.inputs, in)
	}
	return in
}

// builtOf notes a file or folder that an image is built of, whole.
func (j *composeJudge) builtOf(place string) composeInput {
	in := j.input(place, true)
	if in.known {
		j.service.contexts = append(j.service.contexts, in.path)
	}
	return in
}

// outside are the files and folders outside of a workspace that a service is built of: RUN steps can send these anywhere.
func (s *Service) outside(workspace string) (all []string) {
	for _, in := range s.inputs {
		if in.isBuild && in.known && (workspace == "" || !hostfiles.Under(hostfiles.ResolveLinks(in.path), hostfiles.ResolveLinks(workspace))) {
			all = append(all, in.path)
		}
	}
	return all
}

func (c *Compose) fed(s *Service) (all []string) {
	for i := range c.File.Services {
		for _, in := range c.File.Services[i].inputs {
			path, can := s.writes(in)
			if can && in.isBuild {
				path = fmt.Sprintf("%s (%s is built of it: RUN steps of its next build have the engine's network)", path, c.File.Services[i].Name)
			}
			if can && !slices.Contains(all, path) {
				all = append(all, path)
			}
		}
	}
	return all
}

// writes reports whether a service can write an input file or a file of an input folder, and returns its path.
func (s *Service) writes(in composeInput) (path string, can bool) {
	if !in.known {
		return "", false
	}
	for _, mount := range s.mounts {
		if hostfiles.InFolder(in.path, mount) {
			return in.path, true
		}
		if hostfiles.InFolder(mount, in.path) {
			return mount, true
		}
	}
	return "", false
}

// unplaced are files that Compose reads and whose place its variables say.
func (c *Compose) unplaced() (all []string) {
	for i := range c.File.Services {
		for _, in := range c.File.Services[i].inputs {
			if !in.known && !slices.Contains(all, in.path) {
				all = append(all, in.path)
			}
		}
	}
	return all
}
