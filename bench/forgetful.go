//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// forgetting is what AppendAll does in an egressd whose log is thrown away: it numbers
// the records, and that is all. With durability process nobody waits for more. There is
// no such egressd but the one that bench builds to measure what the log costs.
const forgetting = `{
	for _, record := range records {
		if err := checkRecord(record); err != nil {
			return 0, 0, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	first = l.written
	l.written += int64(len(records))
	return first, len(records), nil
}`

// forgetful builds an egressd from the source in dir whose log is thrown away, and
// returns the path of the binary, or an [*absence].
func forgetful(source, base string) (string, error) {
	root, err := filepath.Abs(source)
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "audit", "append.go")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", &absence{"egressd without a log: its source is not in " + source, "run bench in the folder bench of egressd's source, or with -source DIR"}
	}
	if text, err = replaceBody(text, "AppendAll", forgetting); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	replaced, overlay, binary := filepath.Join(base, "append.go"), filepath.Join(base, "overlay.json"), filepath.Join(base, "egressd-off")
	if err := os.WriteFile(replaced, text, 0o644); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: replaced}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, list, 0o644); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-C", root, "-trimpath", "-overlay", overlay, "-o", binary, "./cmd/egressd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		why, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
		return "", &absence{fmt.Sprintf("egressd without a log does not build: %v: %s", err, why), "go build ./cmd/egressd"}
	}
	return binary, nil
}

// replaceBody returns Go source in which the body of one function is another one.
func replaceBody(source []byte, name, body string) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name && f.Body != nil {
			from, to := files.Position(f.Body.Pos()).Offset, files.Position(f.Body.End()).Offset
			return bytes.Join([][]byte{source[:from], source[to:]}, []byte(body)), nil
		}
	}
	return nil, fmt.Errorf("there is no function %s", name)
}
