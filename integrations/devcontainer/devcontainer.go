// Package devcontainer changes a devcontainer.json so that the container hands its network to egressd serve. It has
// the Feature of dev containers that does so, embedded.
package devcontainer

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/jsonc"
)

// Options say how a dev container hands its network to egressd.
type Options struct {
	Folder       string                  // of the workspace; a full path
	SocketFolder string                  // folder of the socket at which its network is attached
	Socket       string                  // name of the socket
	Program      string                  // egressd on this machine, which is mounted; empty where the Feature has it
	Captured     bool                    // the container captures what is sent; else programs are told by Variables
	Variables    []integrations.Variable // of every process of the container

	Environ []string // of who starts the container, for ${localEnv:NAME}

	Machine *boundary.Machine // this machine
	Trust   []string          // Features, images and Dockerfiles that the user has read
	guards  []string          // mounts of paths of the workspace in their places, as [Merge] finds them
	// ImageLabels returns the labels of an image that the engine of this machine has. It may be nil.
	ImageLabels func(image string) (labels map[string]string, found bool)
	// Volume returns a volume that the engine has already. It may be nil.
	Volume func(name string) (v boundary.Volume, found bool)
}

// A BoundaryError says that a setting lets a container get around egressd. Instead
// is what to write.
type BoundaryError struct {
	Path, Setting, Problem, Instead string
}

func (e *BoundaryError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Path, e.Setting, e.Problem)
}

const (
	featureFolder = "egressd"
	variablesFile = "container.env"
	folderInside  = "/run/egressd"
	programInside = "/usr/local/bin/egressd"
	TrustBundle   = "/usr/local/share/egressd/ca.pem" // where the Feature has what programs are to trust
)

// Merge plans that the dev container of a workspace has no network but the one
// that it attaches to egressd. Comments and layout stay. Its errors are
// [*BoundaryError], [*integrations.ConflictError], [*integrations.ShapeError], and those of reading.
func Merge(d Options) (*integrations.Plan, error) {
	at, old, err := d.find()
	if err != nil {
		return nil, err
	}
	doc, err := jsonc.Parse(old)
	if err != nil {
		return nil, &integrations.ShapeError{Path: at, Problem: "it is not JSON: " + err.Error(), ByHand: d.byHand()}
	}
	doc.Replace("mounts", d.moved)
	said := map[string]any{}
	if err := json.Unmarshal(jsonc.Standard(doc.Pack()), &said); err != nil {
		return nil, &integrations.ShapeError{Path: at, Problem: "it is no object", ByHand: d.byHand()}
	}
	if d.Machine.Loose {
		return nil, &BoundaryError{at, "the engine", "its filter of system calls lets programs make namespaces of users, in which they can put other settings in the place of these", "an engine with Docker's own seccomp profile; Podman's lets them"}
	}
	if err := d.check(at, said); err != nil {
		return nil, err
	}
	if err := d.add(at, doc); err != nil {
		return nil, err
	}
	if err := d.place(at, doc, said); err != nil {
		return nil, err
	}
	beside, err := d.feature(filepath.Dir(at))
	if err != nil {
		return nil, err
	}
	return &integrations.Plan{File: integrations.File{Path: at, Old: old, New: doc.Pack()}, Beside: beside, Notes: d.notes(said)}, nil
}

// find returns the settings and where they are. Those that lie in the workspace's own
// folder are refused: whoever works in it can put others in front of them.
func (d *Options) find() (at string, text []byte, err error) {
	at = filepath.Join(d.Folder, ".devcontainer", "devcontainer.json")
	if text, err = integrations.ReadText(at); err != nil || text != nil {
		return at, text, err
	}
	loose := filepath.Join(d.Folder, ".devcontainer.json")
	if text, err = integrations.ReadText(loose); err != nil {
		return at, nil, err
	}
	if text != nil {
		return at, nil, &BoundaryError{loose, "its place", "in the container somebody can write .devcontainer/devcontainer.json, which counts before it", "mkdir .devcontainer && mv .devcontainer.json .devcontainer/devcontainer.json"}
	}
	return at, nil, &integrations.ShapeError{Path: at, Problem: "there is no devcontainer.json", ByHand: `{"image": "mcr.microsoft.com/devcontainers/base:bookworm"}`}
}

// arguments are those of docker run. To capture takes sockets that need CAP_NET_RAW, which
// an engine gives.
func (d *Options) arguments() []string {
	capability := "--cap-drop=NET_RAW"
	if d.Captured {
		capability = "--cap-add=NET_ADMIN"
	}
	return []string{"--network=none", capability, "--dns=127.0.0.1", "--env-file=${localWorkspaceFolder}/.devcontainer/" + featureFolder + "/" + variablesFile}
}

// mounts are the folder of the socket, egressd, and the settings themselves, which nobody in the
// container is to change: who builds it anew would build what was asked for inside.
func (d *Options) mounts() []string {
	all := []string{"source=" + d.SocketFolder + ",target=" + folderInside + ",type=bind,readonly"}
	if d.Program != "" {
		all = append(all, "source="+d.Program+",target="+programInside+",type=bind,readonly")
	}
	return append(append(all, "source=${localWorkspaceFolder}/.devcontainer,target=${containerWorkspaceFolder}/.devcontainer,type=bind,readonly"), d.guards...)
}

// moved returns the present mount in place of one that an earlier call wrote, when the socket or egressd was elsewhere. It
// returns other mounts as they are.
func (d *Options) moved(mount string) string {
	source, rest, _ := strings.Cut(mount, ",")
	for _, own := range d.mounts() {
		if now, same, _ := strings.Cut(own, ","); same == rest && strings.HasPrefix(source, "source=") && !strings.Contains(now, "${") {
			return own
		}
	}
	return mount
}

func (d *Options) mode() string {
	if d.Captured {
		return "transparent"
	}
	return "proxy"
}

// byHand is what the settings have to say, for who writes it.
func (d *Options) byHand() string {
	return fmt.Sprintf(`"runArgs": %s, "mounts": %s, "features": {"./egressd": {"mode": %q}}`, list(d.arguments()), list(d.mounts()), d.mode())
}

func list(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = jsonc.Quote(w)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func (d *Options) add(at string, doc *jsonc.File) error {
	for _, l := range []struct {
		key   string
		words []string
	}{{"runArgs", d.arguments()}, {"mounts", d.mounts()}} {
		if err := doc.Include(l.key, l.words); err != nil {
			return &integrations.ShapeError{Path: at, Problem: err.Error(), ByHand: d.byHand()}
		}
	}
	settings := []integrations.Variable{{Name: "mode", Value: d.mode()}}
	if d.Socket != "enter.sock" {
		settings = append(settings, integrations.Variable{Name: "socket", Value: path.Join(folderInside, d.Socket)})
	}
	for _, s := range settings {
		if err := d.set(at, doc, []string{"features", "./" + featureFolder, s.Name}, s.Value); err != nil {
			return err
		}
	}
	return nil
}

func (d *Options) set(at string, doc *jsonc.File, keys []string, value string) error {
	quoted := jsonc.Quote(value)
	has, err := doc.Set(keys, quoted)
	switch {
	case err != nil:
		return &integrations.ShapeError{Path: at, Problem: err.Error(), ByHand: d.byHand()}
	case has != "":
		return &integrations.ConflictError{Path: at, Setting: jsonc.Joined(keys), Has: has, Want: quoted}
	}
	return nil
}

// environment returns the file for docker run --env-file. docker exec passes these variables on, too. containerEnv
// is no choice: it adds an image layer for each variable, and a Feature's variables would break the installation of
// other Features, which has another network.
func (d *Options) environment() string {
	var b strings.Builder
	b.WriteString("# Written by egressd init devcontainer.\n")
	for _, v := range d.Variables {
		b.WriteString(v.Name + "=" + v.Value + "\n")
	}
	return b.String()
}

// feature is the Feature, in the folder of the settings, where tools look for what
// is local.
func (d *Options) feature(beside string) ([]integrations.Made, error) {
	files, err := Feature()
	if err != nil {
		return nil, err
	}
	var made []integrations.Made
	for _, f := range files {
		made = append(made, integrations.Made{Path: filepath.Join(beside, featureFolder, f.Path), Text: string(f.Text), Mode: f.Mode})
	}
	return append(made, integrations.Made{Path: filepath.Join(beside, featureFolder, variablesFile), Text: d.environment(), Mode: 0o644}), nil
}

// FeatureProgram is where the Feature of a workspace has egressd where that is not mounted.
func FeatureProgram(folder string) string {
	return filepath.Join(folder, ".devcontainer", featureFolder, "egressd")
}

func (d *Options) notes(said map[string]any) []string {
	notes := []string{
		"what builds the image, and installs Features, has the network of docker build, and is not held; nor is what the editor itself carries (forwarded ports, its extensions, git's credentials)",
	}
	if builtFromOutside(said) {
		notes = append(notes, "what the image is built of lies outside of .devcontainer: somebody in the container can change what the next build copies and runs, with that network")
	}
	if others, _ := filepath.Glob(filepath.Join(boundary.Globbed(d.Folder), ".devcontainer", "*", "devcontainer.json")); len(others) > 0 { // the pattern is sound
		notes = append(notes, "an editor offers these settings, too, and nothing holds a container of theirs: "+strings.Join(others, ", "))
	}
	if all := d.secrets(said); len(all) > 0 {
		notes = append(notes, "the container gets "+strings.Join(all, ", ")+" of your environment; unset them, or let egressd add credentials to requests")
	}
	if len(d.guards) > 0 {
		notes = append(notes, "no program in the container can rename or replace what the next start or build reads of the workspace: "+strings.Join(d.guards, " ")+" mount it where it lies")
	}
	if said["appPort"] != nil {
		notes = append(notes, "appPort publishes nothing in a container without network; forwardPorts works")
	}
	if d.Captured {
		notes = append(notes, "the container has CAP_NET_ADMIN over a network that leads nowhere: root in it can take the rules away, and has no network then")
	}
	return notes
}

// secrets are variables of the user's environment, with keys or passwords by their names, that settings pass on.
func (d *Options) secrets(said map[string]any) (all []string) {
	text, err := json.Marshal(said)
	if err != nil {
		return nil
	}
	var names []string
	for _, f := range localVariable().FindAllStringSubmatch(string(text), -1) {
		names = append(names, f[1])
	}
	c := &checker{Options: *d}
	args, _ := c.readArguments(words(said["runArgs"])) // they were read before
	for _, a := range args {
		switch a.name { // NAME alone takes the value from the environment
		case "--env", "-e":
			names = append(names, c.expanded(a.value))
		case "--env-file":
			text, _ := integrations.ReadText(c.envFile(a.value)) // this, too
			for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
				names = append(names, strings.TrimSpace(line))
			}
		}
	}
	for _, name := range names {
		if _, is := d.variable(name); is && boundary.IsSecretVariable(name) && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// builtFromOutside reports whether the image is built of files that are not in the folder of
// the settings, where nobody in the container can write.
func builtFromOutside(said map[string]any) bool {
	build, _ := said["build"].(map[string]any)
	for _, place := range []any{build["dockerfile"], build["context"], said["dockerFile"], said["context"]} {
		if path, ok := place.(string); ok && (strings.Contains(path, "..") || strings.Contains(path, "${")) {
			return true
		}
	}
	return false
}

//go:embed src/egressd
var source embed.FS

// A File is one of the Feature. Path is relative to its folder.
type File struct {
	Path string
	Text []byte
	Mode fs.FileMode
}

// Feature returns the files of the Feature in the order of their names.
func Feature() (files []File, err error) {
	const root = "src/egressd"
	entries, err := source.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, err := source.ReadFile(root + "/" + e.Name())
		if err != nil {
			return nil, err
		}
		mode := fs.FileMode(0o644)
		if len(text) > 2 && string(text[:2]) == "#!" { // a file that is embedded has no mode
			mode = 0o755
		}
		files = append(files, File{e.Name(), text, mode})
	}
	return files, nil
}
