package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/integrations/boundary"
	"go.yaml.in/yaml/v3"
)

// resolvePatience bounds how long Compose may take to print a file.
const resolvePatience = 30 * time.Second

// Resolved returns the file as the Compose of this machine reads it, or nil if there is none. Two readers of YAML may
// differ, and egressd judges both readings. Compose only prints; it asks no engine. It gets the same lines of .env as from up.sh, and
// the name of the project.
//
// Of Compose 2 the text of the result stands for itself: what the file extends, includes and reads is in it.
func (c *File) Resolved(ctx context.Context, project string) (*File, error) {
	ctx, cancel := context.WithTimeout(ctx, resolvePatience)
	defer cancel()
	program := program(ctx)
	if program == nil {
		return nil, nil
	}
	for tries := 3; tries > 0; tries-- {
		inputs := c.readInputs()
		if len(inputs.unread) > 0 {
			return nil, fmt.Errorf("%w: %s", ErrInput, strings.Join(inputs.unread, "; "))
		}
		printed, err := c.config(ctx, program, project)
		if err != nil {
			return nil, err
		}
		if c.beside.same() && inputs.same() {
			return c.resolved(printed, inputs, len(program) > 1)
		}
	}
	return nil, fmt.Errorf("files that %s names change while they are read; stop what writes them", c.Path)
}

// config is what Compose prints.
func (c *File) config(ctx context.Context, program []string, project string) ([]byte, error) {
	var out, talk bytes.Buffer
	dir := filepath.Dir(c.Path)
	env, err := os.CreateTemp("", "egressd-env-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(env.Name())
	_, err = env.WriteString(c.Env())
	if err = errors.Join(err, env.Close()); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program[0], slices.Concat(program[1:], []string{"--project-directory", dir, "--env-file", env.Name(), "-p", project, "-f", "-"}, c.profiles(), []string{"config"})...)
	cmd.Env = append(os.Environ(), "COMPOSE_EXPERIMENTAL_GIT_REMOTE=false", "COMPOSE_EXPERIMENTAL_OCI_REMOTE=false") // it fetches nothing from elsewhere
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, bytes.NewReader(c.Text), &out, &talk                           // the file may be another one by now
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s config refuses %s: %w: %.1000s", strings.Join(program, " "), c.Path, err, strings.TrimSpace(talk.String()))
	}
	return out.Bytes(), nil
}

// resolved reads what Compose has printed. ofTwo reports whether that was Compose 2.
func (c *File) resolved(printed []byte, inputs *inputs, ofTwo bool) (*File, error) {
	if ofTwo {
		var err error
		if printed, err = c.settled(printed); err != nil {
			return nil, err
		}
	}
	text, err := parseCompose(printed)
	if err != nil {
		return nil, fmt.Errorf("Compose prints what cannot be read: %w", err)
	}
	resolved := described(c.Path, text, c.env.ofProfiles())
	resolved.Name, resolved.has, resolved.volume, resolved.routes, resolved.workspace, resolved.ofOne = c.Name, c.has, c.volume, c.routes, c.workspace, c.ofOne
	resolved.inputs, resolved.problems = append(inputs.files, c.beside.files...), append(resolved.problems, slices.Concat(inputs.problems, inputs.judge.service.problems, c.differing())...)
	if !c.composed {
		resolved.written = c
	}
	if ofTwo {
		resolved.Text = printed
	}
	return resolved, nil
}

// settled is what Compose 2 has printed, as up.sh starts it. Services that name no network have none, as in the file: Compose
// prints default, which an override file cannot take away. A secret of the user's environment is a variable again.
func (c *File) settled(printed []byte) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(printed, &root); err != nil {
		return nil, fmt.Errorf("Compose prints what cannot be read: %w", err)
	}
	if len(root.Content) == 0 {
		return nil, errors.New("Compose prints nothing")
	}
	services := valueIn(root.Content[0], "services")
	for i := 0; i+1 < len(services.Content); i += 2 {
		name, service := services.Content[i].Value, services.Content[i+1]
		written := c.text.Services[name]["networks"]
		if networks := valueIn(service, "networks"); isNothing(&written) && slices.Equal(keysOf(networks), []string{"default"}) && isNothing(valueIn(networks, "default")) {
			remove(service, "networks")
		}
	}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if boundary.IsSecretVariable(name) && len(value) >= secretBytes && !strings.Contains(value, "$") {
			replace(&root, value, "${"+name+"}")
		}
	}
	return yaml.Marshal(&root)
}

// secretBytes is how long a value is that could be nothing but a secret.
const secretBytes = 12

// valueIn is the value of a key of a mapping, or an empty node.
func valueIn(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; mapping.Kind == yaml.MappingNode && i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return &yaml.Node{}
}

func remove(mapping *yaml.Node, key string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content = slices.Delete(mapping.Content, i, i+2)
			return
		}
	}
}

// replace puts one text in the place of another one in all values.
func replace(n *yaml.Node, old, now string) {
	if n.Kind == yaml.ScalarNode {
		n.Value = strings.ReplaceAll(n.Value, old, now)
	}
	for _, one := range n.Content {
		replace(one, old, now)
	}
}

// profiles are flags by which Compose prints the services of all profiles: up.sh starts any of them. "*" is for Compose 2, which
// may know more of them.
func (c *File) profiles() []string {
	all := []string{"--profile", "*"}
	for _, keys := range c.text.Services {
		n := keys["profiles"]
		for _, name := range valuesOf(&n) {
			all = append(all, "--profile", name)
		}
	}
	return all
}

// IsOne reports whether the Compose of this machine is the older command, Compose 1.
func IsOne(ctx context.Context) bool { return len(program(ctx)) == 1 }

// program is the Compose of this machine: the plugin of docker, or the older command.
func program(ctx context.Context) []string {
	if exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}
	}
	if _, err := exec.LookPath("docker-compose"); err == nil {
		return []string{"docker-compose"}
	}
	return nil
}
