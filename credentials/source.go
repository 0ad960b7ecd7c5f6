package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/credentials/tokens"
)

const (
	sourceMost  = 64 << 10 // bytes of a file or of what a command prints
	commandMost = 10 * time.Second
)

// Text reads the secret. relative makes the path of a file absolute. The error holds no part of the secret.
func (s *Source) Text(ctx context.Context, relative func(string) string) ([]byte, error) {
	text, _, err := s.read(ctx, relative, nil)
	return text, err
}

// read also returns when the secret ends, in Unix seconds, or 0.
func (s *Source) read(ctx context.Context, relative func(string) string, servers *tokens.Asker) (text []byte, until int64, err error) {
	switch {
	case s.OAuth != nil || s.GitHubApp != nil:
		return s.granted(ctx, relative, servers)
	case s.File != "":
		text, err = readFile(relative(s.File))
		if err == nil && s.Field != "" {
			text, err = fieldOf(text, s.Field)
			if err != nil {
				err = fmt.Errorf("%s: %w", relative(s.File), err)
			}
		}
		return text, 0, err
	case s.Env != "":
		value, set := os.LookupEnv(s.Env)
		if !set {
			return nil, 0, fmt.Errorf("the variable %s is not set", s.Env)
		}
		return []byte(value), 0, nil
	}
	if text, err = commandOutput(ctx, s.Command); err != nil {
		return nil, 0, err
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return text, 0, nil
	}
	if text, until, err = tokenOf(text); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", s.Command[0], err)
	}
	return text, until, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, sourceMost+1))
	if err == nil && len(text) > sourceMost {
		err = fmt.Errorf("%s has more than %d bytes", path, sourceMost)
	}
	return text, err
}

// fieldOf returns the text of one field of a JSON object: "a.b" is the field b of the object a.
func fieldOf(text []byte, field string) ([]byte, error) {
	for name := range strings.SplitSeq(field, ".") {
		var object map[string]json.RawMessage
		if json.Unmarshal(text, &object) != nil { // whose error may quote the text
			return nil, fmt.Errorf("no JSON object has the field %s", field)
		}
		text = object[name]
	}
	var value string
	if text == nil || json.Unmarshal(text, &value) != nil {
		return nil, fmt.Errorf("there is no text in the field %s", field)
	}
	return []byte(value), nil
}

// tokenOf reads what a command prints as JSON: {"token": "…", "expires_at": "2026-11-28T12:00:00Z"}.
func tokenOf(text []byte) ([]byte, int64, error) {
	var printed struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	switch {
	case json.Unmarshal(text, &printed) != nil || printed.Token == "":
		return nil, 0, errors.New(`what it prints is no JSON object with the members "token" and "expires_at"`)
	case printed.Expires.IsZero():
		return []byte(printed.Token), 0, nil
	case !printed.Expires.After(time.Now()):
		return nil, 0, errors.New("the token that it prints has expired")
	}
	return []byte(printed.Token), printed.Expires.Unix(), nil
}

// commandOutput returns the standard output of a command. Standard error is discarded, since it may hold the
// credential.
func commandOutput(ctx context.Context, command []string) ([]byte, error) {
	if len(command) == 0 {
		return nil, errors.New("neither file, env nor command is given")
	}
	ctx, cancel := context.WithTimeout(ctx, commandMost)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], slices.Clone(command[1:])...)
	cmd.Dir = "/" // a working tree has settings that git and others execute
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fmt.Errorf("%s did not end within %s", command[0], commandMost)
		}
		return nil, fmt.Errorf("%s: %w", command[0], err)
	}
	return out.Bytes(), nil
}
