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
)

// resolvePatience bounds how long Compose may take to print a file.
const resolvePatience = 30 * time.Second

// Resolved returns the file as the Compose of this machine reads it, or nil if there is none. Two readers of YAML may
// differ, and egressd judges both readings. Compose only prints; it asks no engine, and [File.Problems] refuses what
// would have it read other files.
//
// Compose gets the same lines of .env as from up.sh, and the name of the project.
func (c *File) Resolved(ctx context.Context, project string) (*File, error) {
	ctx, cancel := context.WithTimeout(ctx, resolvePatience)
	defer cancel()
	program := program(ctx)
	if program == nil {
		return nil, nil
	}
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
	text, err := parseCompose(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s config prints what cannot be read: %w", strings.Join(program, " "), err)
	}
	resolved := described(c.Path, text, nil)
	resolved.written, resolved.Name, resolved.has, resolved.volume = c, c.Name, c.has, c.volume
	resolved.routes = c.routes
	return resolved, nil
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
