package compose

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/hostfiles"
)

// guard gives each held service mounts by which it can replace nothing that it, or another service, mounts out of a folder
// which it can write: at the next start the engine would mount what a link leads to.
//
// A file as Compose reads it has the guards of the file as it is written, because those stand in the override file.
func (c *File) guard(held []string) {
	for i := range c.Services {
		s := &c.Services[i]
		s.guards, s.held, s.loose = nil, slices.Contains(held, s.Name), c.loose
		if c.written != nil {
			s.guards = c.written.Service(s.Name).guards
			continue
		}
		if !s.held || c.loose {
			continue
		}
		for _, one := range s.mounted {
			outer, _ := one.(map[string]any)
			folder, destination := text(outer["Source"]), text(outer["Destination"])
			if writable, _ := outer["RW"].(bool); !writable || outer["Type"] != "bind" || destination == "" {
				continue
			}
			for _, source := range c.sources() {
				for _, step := range boundary.Steps(folder, destination, source) {
					if !s.has(step.Destination) {
						s.guards = append(s.guards, step)
					}
				}
			}
		}
	}
}

// readAgain are the files of env_file that Compose 1 reads at the start, after egressd has judged them.
func (c *File) readAgain(s *Service) (all []string) {
	for _, in := range s.inputs {
		if _, err := os.Stat(in.path); c.ofOne && in.known && !in.isBuild && err == nil {
			all = append(all, in.path)
		}
	}
	return all
}

// sources are the files and folders of the host that services mount, or are built of, or that Compose reads for them.
func (c *File) sources() (all []string) {
	for i := range c.Services {
		all = append(all, c.Services[i].reads...)
		all = append(all, c.Services[i].contexts...)
		all = append(all, c.readAgain(&c.Services[i])...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// has reports whether something is mounted there already.
func (s *Service) has(destination string) bool {
	return slices.ContainsFunc(s.mounted, func(one any) bool {
		m, _ := one.(map[string]any)
		return filepath.Clean(text(m["Destination"])) == destination
	}) || slices.ContainsFunc(s.guards, func(g boundary.Step) bool { return g.Destination == destination })
}

// guarded are all mounts of a service, with those of the override file.
func (s *Service) guarded() (all []any) {
	all = slices.Clone(s.mounted)
	for _, g := range s.guards {
		all = append(all, map[string]any{"Type": "bind", "Source": g.Source, "Destination": g.Destination, "RW": true})
	}
	return all
}

// writeGuards writes the guards as volumes of a service.
func (s *Service) writeGuards(b *strings.Builder) {
	if len(s.guards) == 0 {
		return
	}
	b.WriteString("    volumes: # in their places, which a program cannot replace then\n")
	for _, g := range s.guards {
		if strings.Contains(g.Source+g.Destination, ":") {
			fmt.Fprintf(b, "      - {type: bind, source: %q, target: %q}\n", inCompose(g.Source), inCompose(g.Destination))
		} else {
			fmt.Fprintf(b, "      - %q\n", inCompose(g.Source+":"+g.Destination)) // the engine makes a folder that is not there
		}
	}
}

func destinations(guards []boundary.Step) (all []string) {
	for _, g := range guards {
		all = append(all, g.Destination)
	}
	return all
}

// replaceable are paths that some of the other services mount, and that s can put a link in the place of.
func (c *File) replaceable(s *Service, of func(service string) bool) (all []string) {
	for i := range c.Services {
		if !of(c.Services[i].Name) {
			continue
		}
		for _, path := range c.Services[i].reads {
			if !slices.Contains(all, path) && s.replaces(path) {
				all = append(all, path)
			}
		}
	}
	return all
}

// swapped are sentences about what a held service can put a link in the place of, and Compose reads later: for the next build, or as
// long as docker compose watch runs.
func (c *File) swapped(s *Service) (all []string) {
	for i := range c.Services {
		of := &c.Services[i]
		for _, path := range of.contexts {
			if s.replaces(path) {
				all = append(all, fmt.Sprintf("%s can put a link in the place of %s, which %s is built of: the next build gets what that leads to; build of a folder that %s does not write", s.Name, path, of.Name, s.Name))
			}
		}
		for _, path := range c.readAgain(of) {
			if s.replaces(path) {
				all = append(all, fmt.Sprintf("%s can put a link in the place of %s, which Compose 1 reads for %s at the start: %s has the variables of what that leads to then; mount a folder beside it, or use Compose 2", s.Name, path, of.Name, of.Name))
			}
		}
		for _, path := range of.copied {
			if !(s.Name == of.Name && s.binds(path)) && slices.ContainsFunc(s.mounts, func(mount string) bool { return hostfiles.InFolder(path, mount) || hostfiles.InFolder(mount, path) }) {
				all = append(all, fmt.Sprintf("%s can write %s, which docker compose watch copies into %s, with what links lead to; leave one of both out", s.Name, path, of.Name))
			}
		}
	}
	return all
}

// binds reports whether a service has a path by a bind mount: Compose watches no such path for it.
func (s *Service) binds(path string) bool {
	return slices.ContainsFunc(s.mounted, func(one any) bool {
		m, _ := one.(map[string]any)
		return m["Type"] == "bind" && text(m["Destination"]) != "" && hostfiles.Under(path, text(m["Source"]))
	})
}

// replaces reports whether a service can put a link in the place of a path.
func (s *Service) replaces(path string) bool {
	for _, folder := range s.mounts {
		if hostfiles.ThroughFolder(path, folder) && !s.holds(folder, path) {
			return true
		}
	}
	return false
}

// holds reports whether each mount of a folder that the service can write holds a path in its place.
func (s *Service) holds(folder, path string) bool {
	found := false
	if s.loose {
		return false
	}
	for _, one := range s.mounted {
		outer, _ := one.(map[string]any)
		if writable, _ := outer["RW"].(bool); !writable || text(outer["Source"]) != folder || outer["Type"] != "bind" {
			continue
		}
		found = true
		steps := boundary.Steps(folder, text(outer["Destination"]), path)
		if len(steps) == 0 || slices.ContainsFunc(steps, func(step boundary.Step) bool { return !s.mountsIn(step) }) {
			return false
		}
	}
	return found
}

// mountsIn reports whether a service mounts a file or folder in its place.
func (s *Service) mountsIn(step boundary.Step) bool {
	return slices.ContainsFunc(s.guarded(), func(one any) bool {
		m, _ := one.(map[string]any)
		return text(m["Source"]) == step.Source && filepath.Clean(text(m["Destination"])) == step.Destination
	})
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
