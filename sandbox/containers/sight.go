package containers

import (
	"context"
	"iter"
	"net/url"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A Sight is the engine's account of a container, its volumes, its networks and other sandboxes.
type Sight struct {
	Container  boundary.Description
	Volumes    map[string]boundary.Volume
	Neighbours []boundary.Neighbour
	Closed     []string // networks of the container that lead nowhere
}

// On gives a machine what an engine says of it.
func (s *Sight) On(m *boundary.Machine) {
	m.Volumes, m.Neighbours, m.Labelled = s.Volumes, s.Neighbours, true
}

// Refused is the container as one that is refused by a setting.
func (s *Sight) Refused(setting, reason string) *sandbox.RefusedContainer {
	var is struct {
		ID     string `json:"Id"`
		Name   string
		Config struct {
			Image  string
			Labels map[string]string
		}
	}
	_ = s.Container.Into(&is) // what cannot be read stays empty
	return &sandbox.RefusedContainer{
		ID: is.ID, Name: trimSlash(is.Name), Image: is.Config.Image,
		Project: is.Config.Labels[policy.ComposeProject], Service: is.Config.Labels[policy.ComposeService],
		Setting: setting, Reason: sandbox.RefusedReason(reason),
	}
}

// Inspect returns what the engine at a socket says of a container.
func Inspect(ctx context.Context, socket, name string) (*Sight, error) {
	api := newEngineAPI(socket)
	defer api.close()
	return api.inspect(ctx, name)
}

func (e *engineAPI) inspect(ctx context.Context, name string) (*Sight, error) {
	s := &Sight{Volumes: make(map[string]boundary.Volume)}
	if err := e.get(ctx, "/containers/"+name+"/json", &s.Container); err != nil {
		return nil, err
	}
	mounts, _ := s.Container["Mounts"].([]any)
	for name := range volumesIn(mounts) {
		var v volume
		if err := e.get(ctx, "/volumes/"+url.PathEscape(name), &v); err != nil {
			return nil, err
		}
		s.Volumes[name] = boundary.Volume{Driver: v.Driver, Options: v.Options}
	}
	return s, e.beside(ctx, s)
}

// A volume is what the engine says of one.
type volume struct {
	Name, Driver string
	Options      map[string]string
}

// volumesIn yields the names of the volumes among mounts.
func volumesIn(mounts []any) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, m := range mounts {
			fields, _ := m.(map[string]any)
			if name, _ := fields["Name"].(string); fields["Type"] == "volume" && name != "" && !yield(name) {
				return
			}
		}
	}
}

// beside asks for networks, and for the other containers that run.
func (e *engineAPI) beside(ctx context.Context, s *Sight) error {
	var networks []struct {
		ID       string `json:"Id"`
		Name     string
		Internal bool
	}
	if err := e.get(ctx, "/networks", &networks); err != nil {
		return err
	}
	closed := map[string]bool{} // by ID
	for _, n := range networks {
		closed[n.ID] = n.Internal
	}
	type endpoints struct {
		Networks map[string]struct{ NetworkID string }
	}
	var is struct {
		ID              string `json:"Id"`
		NetworkSettings endpoints
	}
	if err := s.Container.Into(&is); err != nil {
		return err
	}
	for name, in := range is.NetworkSettings.Networks {
		if in.NetworkID == "" { // it has not started yet
			for _, n := range networks {
				if n.Name == name {
					in.NetworkID = n.ID
				}
			}
		}
		if closed[in.NetworkID] {
			s.Closed = append(s.Closed, name)
		}
	}
	slices.Sort(s.Closed)
	var all []struct {
		ID              string `json:"Id"`
		Names           []string
		Mounts          []any
		HostConfig      struct{ NetworkMode string }
		NetworkSettings endpoints
	}
	if err := e.get(ctx, "/containers/json", &all); err != nil {
		return err
	}
	named := false
	for _, c := range all {
		open := c.HostConfig.NetworkMode == "host"
		for name, in := range c.NetworkSettings.Networks {
			open = open || name != "none" && !closed[in.NetworkID]
		}
		if c.ID != is.ID && !open && len(c.Mounts) > 0 {
			s.Neighbours = append(s.Neighbours, boundary.Neighbour{Name: strings.TrimPrefix(strings.Join(c.Names[:min(1, len(c.Names))], ""), "/"), Mounts: c.Mounts})
			for range volumesIn(c.Mounts) {
				named = true
			}
		}
	}
	if !named {
		return nil
	}
	var local struct{ Volumes []volume }
	if err := e.get(ctx, "/volumes?filters="+url.QueryEscape(`{"driver":["local"]}`), &local); err != nil { // other drivers may be slow
		return err
	}
	for _, v := range local.Volumes {
		s.Volumes[v.Name] = boundary.Volume{Driver: v.Driver, Options: v.Options}
	}
	return nil
}
