//go:build linux

// Reach prints which files of egressd's core a person opens to follow one operation. A file counts if the operation runs a statement
// in it that an idle egressd does not run. It is no gate.
//
//	go run ./reach [-source DIR | -egressd BINARY] [-files] [OPERATION …]
//
// It builds egressd with coverage counters, and starts it once for each operation, with origins and a name server on
// loopback. All names are asked for the first time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/egressd/egressd/"

// core are the packages that count, each with those below it.
var core = []string{"policy", "rego", "egress", "proxy", "dns", "record", "audit", "sandbox", "certs", "config", "daemon", "internal"}

func main() {
	if len(os.Args) == 3 && os.Args[1] == inside {
		os.Exit(visit(os.Args[2]))
	}
	source := flag.String("source", "..", "`directory` of egressd's source")
	binary := flag.String("egressd", "", "`binary` that was built with -cover -coverpkg=./...; empty: build one")
	files := flag.Bool("files", false, "print the files, too, and the lines at which what ran begins")
	flag.Parse()
	if err := run(*source, *binary, *files, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "reach: error: %v\n", err)
		os.Exit(1)
	}
}

func run(source, binary string, files bool, only []string) error {
	for _, name := range only {
		if !slices.ContainsFunc(operations, func(o operation) bool { return o.name == name }) {
			return fmt.Errorf("no operation is called %q; type one of: %s", name, strings.Join(names(), " "))
		}
	}
	dir, err := os.MkdirTemp("", "reach-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w, err := newWorld(dir)
	if err != nil {
		return err
	}
	defer w.close()
	if binary != "" {
		if w.egressd, err = filepath.Abs(binary); err != nil {
			return err
		}
	} else if err := build(source, w.egressd); err != nil {
		return err
	}
	idle := map[string]covered{}
	for _, o := range operations {
		if len(only) > 0 && !slices.Contains(only, o.name) {
			continue
		}
		if idle[o.beyond] == nil {
			if idle[o.beyond], err = w.measure(o.beyond, baselines[o.beyond]); err != nil {
				return err
			}
		}
		ran, err := w.measure(o.name, o.do)
		if err != nil {
			return err
		}
		reached := ran.beyond(idle[o.beyond])
		fmt.Printf("%-16s %3d files\n", o.name, len(reached))
		if files {
			for _, file := range slices.Sorted(maps.Keys(reached)) {
				fmt.Printf("    %-34s %s\n", file, strings.Trim(fmt.Sprint(linesOf(reached[file])), "[]"))
			}
		}
	}
	return nil
}

// build makes a binary that counts what it runs.
func build(source, binary string) error {
	cmd := exec.Command("go", "build", "-cover", "-covermode=set", "-coverpkg=./...", "-o", binary, "./cmd/egressd")
	cmd.Dir, cmd.Stderr = source, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build egressd with coverage counters in %s: %w", source, err)
	}
	return nil
}

// A covered has the blocks of statements that ran, as the coverage profile names them.
type covered map[string]bool

// beyond returns the blocks in c that are not in idle, by files of the core.
func (c covered) beyond(idle covered) map[string][]string {
	files := map[string][]string{}
	for block := range c {
		file, lines, _ := strings.Cut(strings.TrimPrefix(block, module), ":")
		if !idle[block] && inCore(file) {
			files[file] = append(files[file], lines)
		}
	}
	return files
}

// linesOf returns the lines that blocks begin at, sorted.
func linesOf(blocks []string) (lines []int) {
	for _, block := range blocks {
		line, _, _ := strings.Cut(block, ".")
		if n, err := strconv.Atoi(line); err == nil && !slices.Contains(lines, n) {
			lines = append(lines, n)
		}
	}
	slices.Sort(lines)
	return lines
}

func inCore(file string) bool {
	first, _, _ := strings.Cut(file, "/")
	return slices.Contains(core, first)
}

// measure starts an egressd for one operation, and returns the statements that this egressd ran.
func (w *world) measure(name string, do func(*world) error) (covered, error) {
	counters := filepath.Join(w.dir, "counters-"+strings.ReplaceAll(name, " ", "-"))
	if err := os.Mkdir(counters, 0o777); err != nil {
		return nil, err
	}
	w.counters = counters
	if err := do(w); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	text := filepath.Join(counters, "profile")
	out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+text).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: read the counters: %w: %s", name, err, out)
	}
	profile, err := os.ReadFile(text)
	if err != nil {
		return nil, err
	}
	c := covered{}
	for line := range strings.Lines(string(profile)) { // FILE:FROM,TO STATEMENTS COUNT
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		if n, err := strconv.Atoi(fields[2]); err == nil && n > 0 {
			c[fields[0]] = true
		}
	}
	if len(c) == 0 {
		return nil, errors.New(name + ": egressd has counted nothing")
	}
	return c, nil
}
