package compose

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/hostfiles"
)

// notes returns what remains to be done by hand, and what the files do not contain.
func (c *Compose) notes() (all []string) {
	base, file := filepath.Base(c.File.Path), filepath.Base(c.Path)
	if names := c.neighbourly(); len(names) > 0 {
		all = append(all, "these services still reach each other, by networks that are internal now: "+strings.Join(names, "; "))
	}
	if names := c.parted(); len(names) > 0 {
		all = append(all, strings.Join(names, ", ")+" can no longer reach each other by name; with --together they can")
	}
	for i := range c.File.Services {
		s := &c.File.Services[i]
		held := slices.Contains(c.heldNames(), s.Name)
		if way := c.wayOut(s); !held && way != "" {
			all = append(all, fmt.Sprintf("%s is not held, and in the network %s with services that are: through it they may get out; --service %s holds it too", s.Name, way, s.Name))
		}
		if held && s.replicas != "" && !s.Shares() {
			all = append(all, fmt.Sprintf("the %s containers of %s are one sandbox, and reach each other without a record", s.replicas, s.Name))
		}
		if held && s.ports {
			all = append(all, fmt.Sprintf("the ports of %s are not published any more: an internal network has none", s.Name))
		}
		if paths := append(c.written(s), c.fed(s)...); held && len(paths) > 0 {
			all = append(all, fmt.Sprintf("%s can write %s, which the next docker compose up reads: mount what it works on without that, or look at it before", s.Name, strings.Join(paths, " and ")))
		}
		if paths := c.unplaced(); held && len(s.mounts) > 0 && len(paths) > 0 {
			all = append(all, fmt.Sprintf("nothing here can tell whether %s can write %s, which the next docker compose up or build reads: what its variables stand for is up to Compose", s.Name, strings.Join(paths, " and ")))
		}
		if held && len(s.guards) > 0 {
			all = append(all, fmt.Sprintf("%s cannot rename or replace %s: these are mounted where they lie, since others mount them, too", s.Name, strings.Join(destinations(s.guards), ", ")))
		}
		if paths := c.File.replaceable(s, func(other string) bool { return !slices.Contains(c.heldNames(), other) }); held && len(paths) > 0 {
			all = append(all, fmt.Sprintf("%s can put a link in the place of %s, and the engine then mounts what that leads to, such as its own socket: mount what does not lie in another mount", s.Name, strings.Join(paths, " and ")))
		}
	}
	if len(c.shared()) > 0 {
		all = append(all, fmt.Sprintf("networks that are there already are made anew: docker compose -f %s down", base))
	}
	if !c.Pinned() {
		all = append(all, "make image && docker load -i build/egressd-image.tar, and then this once more with --yes: the engine does not have "+c.Image+" yet, whose ID is to be in the file")
	}
	return append(all,
		fmt.Sprintf("%s judges both files again, and is %s; COMPOSE_FILE=%s:%s in .env has docker compose take both, and without the second nothing is held", c.ScriptPath(), c.up(), base, file),
		c.CommandPath()+" log, and why, allow, answer, status, is egressd in its container; for each running container, as root: egressd doctor --container NAME")
}

// neighbourly are the held services that share networks, each with whom.
func (c *Compose) neighbourly() (all []string) {
	for _, h := range c.Sandboxes {
		if others := c.neighbours(h.Name); len(others) > 0 {
			all = append(all, h.Name+" with "+strings.Join(others, ", "))
		}
	}
	return all
}

// parted returns the services that the network default connected until now, if some of them leave it.
func (c *Compose) parted() (names []string) {
	leaves := false
	for i := range c.File.Services {
		s := &c.File.Services[i]
		if s.Shares() || len(s.Networks) > 0 {
			continue
		}
		names = append(names, s.Name)
		leaves = leaves || slices.Contains(c.heldNames(), s.Name)
	}
	if c.Together || !leaves || len(names) < 2 {
		return nil
	}
	return names
}

// wayOut is a network of a service that held ones are in, too, or "".
func (c *Compose) wayOut(s *Service) string {
	for _, name := range c.networksOf(s) {
		if slices.Contains(c.shared(), name) {
			return name
		}
	}
	return ""
}

// written are the files of Compose, and the policy, that a service can write.
func (c *Compose) written(s *Service) (all []string) {
	for _, file := range []string{c.File.Path, c.Path, c.PolicyPath(), filepath.Join(filepath.Dir(c.File.Path), ".env")} {
		path, err := filepath.Abs(file)
		if err != nil {
			continue
		}
		if slices.ContainsFunc(s.mounts, func(dir string) bool { return hostfiles.InFolder(path, dir) }) {
			all = append(all, file)
		}
	}
	return all
}
