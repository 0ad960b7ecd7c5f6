package jailinit

import (
	"errors"
	"os"
	slash "path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Find looks up the program in the PATH of its own environment, like a shell.
func Find(c Program) (string, error) {
	name := c.Argv[0]
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	found := error(&ExecError{Name: name, Problem: "there is no such program in PATH", Missing: true})
	for _, dir := range foldersIn(variableOf(c.Env, "PATH")) {
		if dir == "" {
			dir = "."
		}
		path := slash.Join(dir, name)
		var problem *ExecError
		switch err := executable(path); {
		case err == nil:
			return path, nil
		case errors.As(err, &problem) && !problem.Missing:
			found = err
		}
	}
	return "", found
}

// foldersIn splits a list like PATH. An empty one has none.
func foldersIn(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ":")
}

// executable returns nil where path can be executed.
func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return &ExecError{Name: path, Problem: "there is no such file", Missing: true}
	case err != nil:
		return &ExecError{Name: path, Problem: err.Error()}
	case info.IsDir():
		return &ExecError{Name: path, Problem: "it is a folder"}
	case unix.Access(path, unix.X_OK) != nil:
		return &ExecError{Name: path, Problem: "it may not be executed"}
	}
	return nil
}

func variableOf(env []string, name string) (value string) {
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			value = rest
		}
	}
	return value
}
