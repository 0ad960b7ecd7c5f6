package policy

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
)

// policyAt returns the policy file that path names: a YAML file, or the policy file in a folder. It returns false if path
// is neither.
func policyAt(path string) (string, bool) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		path = filepath.Join(path, config.FileName)
		info, err = os.Stat(path)
	}
	ext := filepath.Ext(path)
	return path, err == nil && info.Mode().IsRegular() && (ext == ".yaml" || ext == ".yml")
}

// takePolicy takes the policy file from the front of args, if args begin with one and --config names none. It is an error
// if they begin with a folder or with Rego instead: these are no policy by themselves, and no host is meant.
func takePolicy(args []string, path *string) ([]string, error) {
	if len(args) == 0 || *path != "" || !strings.ContainsAny(args[0], "/.") {
		return args, nil
	}
	if found, ok := policyAt(args[0]); ok {
		*path = found
		return args[1:], nil
	}
	info, err := os.Stat(args[0])
	if err != nil || !info.IsDir() && filepath.Ext(args[0]) != ".rego" {
		return args, nil
	}
	folder, named := args[0], "."
	if !info.IsDir() {
		folder, named = filepath.Dir(args[0]), filepath.Base(args[0])
	}
	return nil, hint.Misused(fmt.Errorf("%s is no policy file, and requests are decided by one", args[0]),
		fmt.Sprintf(`write "version: 1" and "rego: [%s]" into %s; tests alone: egressd policy test %s`, named, filepath.Join(folder, config.FileName), shell.Word(args[0])))
}

// sayJudged names the policy file that a command judges, unless the command line names it. If another policy file lies in
// the working directory, sayJudged warns of that.
func sayJudged(stderr io.Writer, c *config.Config, named bool) {
	if named {
		return
	}
	fmt.Fprintf(stderr, "egressd: policy %s\n", printable.Text(c.Path))
	here, err := os.Stat(config.FileName)
	judged, errJudged := os.Stat(c.Path)
	if err != nil || !here.Mode().IsRegular() || errJudged == nil && os.SameFile(here, judged) {
		return
	}
	whole, err := filepath.Abs(config.FileName)
	if err != nil {
		whole = config.FileName
	}
	fmt.Fprintf(stderr, "egressd: warning: this is not the policy in this folder; --config %s judges that one\n", printable.Text(shell.Word(whole)))
}
