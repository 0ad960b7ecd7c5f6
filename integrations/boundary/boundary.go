// Package boundary says which settings of a container keep it behind egressd. It has one table for every
// field that a container engine knows of a container. A field is harmless, judged, or refused. A field that the
// table does not have is refused by its name.
//
// Each reader describes a container as the engine does (GET /containers/ID/json) and asks this package:
// egressd docker run, attach and doctor with the engine's answer, egressd init with a description that it makes
// of a compose file or of devcontainer.json.
//
//	for _, p := range boundary.Judge(container, machine) {
//		fmt.Println(p)
//	}
//
// The package opens no connection and starts no program. It looks at files to tell what a mount leads to.
package boundary

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/egressd/egressd/internal/mounttable"
)

// A Ruling says what the table makes of a field. The zero value refuses.
type Ruling int

const (
	Refused  Ruling = iota // refused if it is set
	Judged                 // refused by its value
	Harmless               // never refused
)

func (k Ruling) String() string { return [...]string{"refused", "judged", "harmless"}[k] }

// A Setting is a row of the table: a field of the engine's API.
type Setting struct {
	Field  string // such as HostConfig.CapAdd; elements of lists and values of free maps have the path of the list
	Ruling Ruling
	Why    string // one sentence
	Names  string // what people write for it: flags of docker run, keys of Compose, properties of devcontainer.json

	free  bool // a map whose keys are names, not fields
	judge func(j *judge, value any)
}

// A Breach is a setting that is refused: by it a container gets around egressd.
type Breach struct {
	Field   string // of the engine's API
	Value   string // what is refused of it; empty if it is the field itself
	Why     string
	Instead string // what to write
}

func (b Breach) String() string { return b.As("") + ": " + b.Why }

// As names the setting as people write it: a flag of docker run for "--", a key of Compose for "_", a property of
// devcontainer.json for "json", the engine's own field for "".
func (b Breach) As(style string) string {
	name := b.Field
	var flags, keys []string
	for n := range strings.FieldsSeq(settings()[b.Field].Names) {
		if strings.HasPrefix(n, "--") {
			flags = append(flags, n)
		} else {
			keys = append(keys, n)
		}
	}
	switch {
	case style == "--" && len(flags) > 0:
		name = flags[0]
	case style == "_" && len(keys) > 0:
		name = keys[0]
	case style == "json" && len(keys) > 0:
		name = keys[len(keys)-1]
	}
	if b.Value == "" {
		return name
	}
	return name + " " + b.Value
}

// Description is a container in the form of the engine's API, decoded from JSON: maps, lists, texts, numbers.
// A field that is not there has the engine's default.
type Description map[string]any

// A Machine is where a container is to run. The zero value has no network, and nothing in it is egressd's.
type Machine struct {
	Home string // of the user who starts the container
	UID  int

	// Networks are the names of networks that lead to egressd alone. A container that has
	// none of them has no network at all: it may have NET_ADMIN and NET_RAW over its loopback.
	Networks []string

	Workspace string             // a folder of the project, which the container may write; or empty
	Own       []string           // files and folders of egressd: policy, state, keys, log, sockets
	Programs  []string           // files and folders that egressd or the host starts, and no container may change
	Doors     []string           // sources of mounts that egressd adds itself: sockets, or read-only
	Engines   []string           // folders in which engines keep containers, images and volumes, besides the usual ones
	Mounts    []mounttable.Mount // of this machine: one file system may have several names
	Sockets   []string           // sockets of engines and of others who act for their clients
	Volumes   map[string]Volume  // as the engine or the file describes them, by name
	Mine      []string           // names of volumes that egressd's own services use
	Images    []string           // names and IDs of egressd's image
	// Loose is set if the engine's filter of system calls lets programs make namespaces of users. In one of these nothing
	// that is mounted keeps its place.
	Loose bool
	// HostGroups is set where engines give every container the host's namespace of control groups: on machines with
	// version 1 of these.
	HostGroups bool
	Labelled   bool // the description is the engine's, with labels that Compose has given
	Neighbours []Neighbour
	Peers      []string // IDs of containers that were judged likewise: one may have the namespaces of another

	// Names of containers, and keys of labels, by which the user tells containers apart: for a policy, or egressd attach
	// --follow. They are the user's to give, and no file of a project has them.
	Names, Labels []string
}

// A Volume is a named volume.
type Volume struct {
	Driver  string
	Options map[string]string
	Unknown bool // nobody here can tell its driver and options
}

// A Neighbour is another container that runs, and that is a sandbox, too, as far as its networks say.
type Neighbour struct {
	Name   string
	Mounts []any // as the engine describes them
}

type judge struct {
	machine  *Machine
	field    string
	why      string // of the field's row
	listed   bool   // the description is the engine's, with all mounts
	runs     bool   // the same, of a container that runs: what its mounts lead to now, the kernel says
	problems []Breach
}

func (j *judge) refuse(value, why, instead string) {
	j.problems = append(j.problems, Breach{j.field, value, why, instead})
}

const leaveOut = "leave it out"

// Judge returns what is refused of a container, in the order of the fields. None: the container stays behind egressd.
func Judge(d Description, p *Machine) []Breach {
	j := &judge{machine: p, listed: text(d["Id"]) != "", runs: d.at("State.Running") == true}
	j.inside("", map[string]any(d))
	for field, always := range always() {
		j.field = field
		always(j, d)
	}
	slices.SortStableFunc(j.problems, func(a, b Breach) int { return strings.Compare(a.Field, b.Field) })
	return slices.Compact(j.problems)
}

// at judges a field.
func (j *judge) at(path string, value any) {
	s, known := settings()[path]
	switch {
	case isEmpty(value) && s.judge == nil:
		return
	case !known && !hasFields()[path]:
		j.field = path
		j.refuse("", "egressd does not know this setting, nor whether it leads out", leaveOut)
		return
	case known && s.Ruling == Refused:
		j.field = path
		j.refuse(shown(value), reason(s.Why), leaveOut)
		return
	case known && s.judge != nil:
		j.field, j.why = path, reason(s.Why)
		s.judge(j, value)
	}
	if !hasFields()[path] {
		return
	}
	if all, ok := value.(map[string]any); ok && s.free {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			j.inside(path, all[name])
		}
		return
	}
	j.inside(path, value)
}

// reason is a sentence of the table as a part of an error.
func reason(sentence string) string {
	return strings.ToLower(sentence[:1]) + strings.TrimSuffix(sentence[1:], ".")
}

// inside judges the fields of a value.
func (j *judge) inside(path string, value any) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			j.inside(path, one)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			j.at(strings.TrimPrefix(path+"."+name, "."), v[name])
		}
	default:
		if !isEmpty(value) {
			j.field = path
			j.refuse(shown(value), "it has another form than egressd knows", leaveOut)
		}
	}
}

// settings is the table by field, made on first use.
var settings = sync.OnceValue(func() map[string]Setting {
	all := make(map[string]Setting)
	for _, s := range Table() {
		all[s.Field] = s
	}
	return all
})

// hasFields are the paths below which the table has fields.
var hasFields = sync.OnceValue(func() map[string]bool {
	all := make(map[string]bool)
	for field := range settings() {
		for i, c := range field {
			if c == '.' {
				all[field[:i]] = true
			}
		}
	}
	return all
})

// Into decodes the description into a value that has some of its fields.
func (d Description) Into(value any) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}

// at returns a field of a description, or nil.
func (d Description) at(path string) any {
	var value any = map[string]any(d)
	for name := range strings.SplitSeq(path, ".") {
		fields, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = fields[name]
	}
	return value
}

// isEmpty reports whether a value says nothing: the engine's default.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case float64:
		return v == 0
	case int:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// shown is a value as an error shows it: a text, a number, the elements of a list, or the names of a map.
func shown(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case float64, int:
		return fmt.Sprint(v)
	case []any:
		var all []string
		for _, one := range v {
			if s := shown(one); s != "" {
				all = append(all, s)
			}
		}
		return strings.Join(all, " ")
	case map[string]any:
		return strings.Join(slices.Sorted(maps.Keys(v)), " ")
	}
	return ""
}

// texts are the elements of a list of texts. An element of another kind is a text of its value. The names of a mapping
// count as elements, and so does any other value alone.
func texts(value any) (all []string) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		return slices.Sorted(maps.Keys(v))
	case []any:
		for _, one := range v {
			all = append(all, fmt.Sprint(one))
		}
	case string:
		if v != "" {
			all = append(all, v)
		}
	default:
		all = append(all, fmt.Sprint(v))
	}
	return all
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
