package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy/file"
)

// Limits of a project, which the sandbox writes.
const (
	maxTreeBytes = 4 << 20
	maxTreeFiles = 500
	maxTreeDepth = 8
)

// The folder of a project in its working tree, and the project file in it.
const (
	TreeFolder = ".egressd"
	TreeFile   = "project.yaml"
)

// A Tree holds the files of a project: the project file first, then the files that it names, in order.
type Tree []TreeText

// A TreeText is a file of a tree.
type TreeText struct {
	Name string `json:"name"` // path relative to the project's folder
	Text []byte `json:"text"`
}

// Equal reports whether both trees have equal files in equal order.
func (t Tree) Equal(other Tree) bool {
	return slices.EqualFunc(t, other, func(a, b TreeText) bool { return a.Name == b.Name && bytes.Equal(a.Text, b.Text) })
}

// Text returns the contents of a file, or nil.
func (t Tree) Text(name string) []byte {
	for _, f := range t {
		if f.Name == name {
			return f.Text
		}
	}
	return nil
}

// Digest returns a digest of names and texts. Each is preceded by its length.
func (t Tree) Digest() string {
	h := sha256.New()
	for _, f := range t {
		fmt.Fprintf(h, "%d\n%s%d\n%s", len(f.Name), f.Name, len(f.Text), f.Text)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Parse parses the project file. The argument dir is for messages.
func (t Tree) Parse(dir string) (*file.File, error) {
	name := filepath.Join(dir, TreeFolder, TreeFile)
	file, err := file.ParseProject(name, t.Text(TreeFile))
	if err != nil {
		return nil, err
	}
	for i, s := range file.Rego {
		switch {
		case !PlainSource(s):
			return nil, fmt.Errorf("rego[%d] of %s: a project names files and folders that decide, and nothing else", i, name)
		case !filepath.IsLocal(s.Path) || strings.Contains(s.Path, "${"):
			return nil, fmt.Errorf("rego[%d] of %s: %s leads out of %s; write a path inside it", i, name, s.Path, TreeFolder)
		}
	}
	return file, nil
}

// Legible returns an error for characters that could deceive a reader, such as line ends and text
// direction marks. It applies the rules of [file.Parse] to names as well.
func (t Tree) Legible() error {
	for _, f := range t {
		text := strings.ReplaceAll(string(f.Text), "\r\n", "\n")
		for i, line := range append([]string{f.Name}, strings.Split(text, "\n")...) {
			line = strings.ReplaceAll(line, "\t", " ")
			if at := strings.IndexFunc(line, file.Deceptive); at >= 0 || !utf8.ValidString(line) {
				return fmt.Errorf("line %d of %s holds an invisible character, or is not UTF-8", i, printable.Text(f.Name))
			}
		}
	}
	return nil
}

// A treeReader reads a tree that the sandbox may be changing. It follows no link, never blocks, and stops
// at the limits.
type treeReader struct {
	folder *os.Root // .egressd
	bytes  int
	found  Tree
}

// ReadTree reads the project of a working tree. If its project file differs from that of trusted, ReadTree
// stops there, because nobody vouches for the files that it names. If there is no project, the error is
// [fs.ErrNotExist].
func ReadTree(dir string, trusted Tree) (Tree, error) {
	r, err := openTree(dir)
	if err != nil {
		return nil, err
	}
	defer r.folder.Close()
	if err := r.file(TreeFile); err != nil {
		return nil, err
	}
	if trusted != nil && !bytes.Equal(r.found[0].Text, trusted.Text(TreeFile)) {
		return r.found, nil
	}
	file, err := r.found.Parse(dir)
	if err != nil {
		return r.found, err
	}
	for _, s := range file.Rego {
		if err := r.named(path.Clean(filepath.ToSlash(s.Path))); err != nil {
			return r.found, err
		}
	}
	return r.found, nil
}

func openTree(dir string) (*treeReader, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := checkType(root, TreeFolder, fs.ModeDir); err != nil {
		return nil, err
	}
	folder, err := root.OpenRoot(TreeFolder)
	if err != nil {
		return nil, err
	}
	return &treeReader{folder: folder}, nil
}

// checkType returns an error unless name has the given type; links are always errors. A later replacement
// still cannot lead out of root.
func checkType(root *os.Root, name string, mode fs.FileMode) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode().Type() != mode {
		return fmt.Errorf("%s is %s", name, kindOfFile(info.Mode()))
	}
	return nil
}

func kindOfFile(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "a link, and none is followed there"
	case mode.IsDir():
		return "a folder and no file"
	case mode.IsRegular():
		return "a file and no folder"
	}
	return "no plain file"
}

// named reads an entry of the project's rego list.
func (r *treeReader) named(name string) error {
	before := len(r.found)
	info, err := r.folder.Lstat(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = r.below(name, 0)
	} else {
		err = r.file(name)
	}
	if err == nil && len(r.found) == before {
		err = fmt.Errorf("%s holds no file that ends in .rego, .json, .yaml or .yml", name)
	}
	return err
}

func (r *treeReader) below(name string, depth int) error {
	if depth == maxTreeDepth {
		return fmt.Errorf("%s lies more than %d folders deep", name, maxTreeDepth)
	}
	if err := checkType(r.folder, name, fs.ModeDir); err != nil {
		return err
	}
	entries, err := r.list(name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch below := path.Join(name, e.Name()); {
		case strings.HasPrefix(e.Name(), "."), below == TreeFile:
		case e.IsDir():
			err = r.below(below, depth+1)
		case IsRegoFile(e.Name()):
			err = r.file(below)
		case e.Type()&fs.ModeSymlink != 0:
			err = fmt.Errorf("%s is a link, and none is followed there", below)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *treeReader) list(name string) ([]fs.DirEntry, error) {
	f, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(4 * maxTreeFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) == 4*maxTreeFiles {
		return nil, fmt.Errorf("%s holds too many entries", name)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// open does not block on a FIFO.
func (r *treeReader) open(name string) (*os.File, error) {
	return r.folder.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
}

// file adds a file. It checks the type before opening, since opening a device has effects, and again
// afterwards.
func (r *treeReader) file(name string) error {
	if len(r.found) == maxTreeFiles {
		return fmt.Errorf("there are more than %d files", maxTreeFiles)
	}
	if err := checkType(r.folder, name, 0); err != nil {
		return err
	}
	f, err := r.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("%s is no plain file", name), err)
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(maxTreeBytes-r.bytes)+1))
	if err != nil {
		return err
	}
	if r.bytes += len(text); r.bytes > maxTreeBytes {
		return fmt.Errorf("the files are larger than %d MiB together", maxTreeBytes>>20)
	}
	r.found = append(r.found, TreeText{name, text})
	return nil
}
