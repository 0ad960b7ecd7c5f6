package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
)

// placeholderFile is in the folder of the authority, which no sandbox sees.
const placeholderFile = "placeholders.key"

// placeholderKey returns the key of the daemon's placeholders. A run has one of its own. That of egressd serve is kept,
// so that placeholders stay the same after a restart, and egressd env knows them.
func (d *Daemon) placeholderKey(c *config.Config) (credentials.Key, error) {
	switch {
	case d.ownKey != nil:
		return *d.ownKey, nil
	case len(c.File.Credentials) == 0:
		return credentials.Key{}, nil
	case d.tailor.OneRun:
		key := credentials.NewKey()
		d.ownKey = &key
		return key, nil
	}
	key, err := PlaceholderKey(c)
	if err == nil {
		d.ownKey = &key
	}
	return key, err
}

// PlaceholderKey reads the key by which egressd serve makes placeholders, and makes it on first use.
func PlaceholderKey(c *config.Config) (key credentials.Key, err error) {
	dir, err := c.CADir()
	if err != nil {
		return key, err
	}
	path := filepath.Join(dir, placeholderFile)
	text, err := durable.Read(path, int64(2*len(key)))
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return key, err
		}
		fresh := credentials.NewKey()
		if err := writeOnce(path, hex.EncodeToString(fresh[:])); err != nil {
			return key, hint.Failed(err, "run it as the user that runs egressd serve")
		}
		text, err = durable.Read(path, int64(2*len(key)))
	}
	if err != nil {
		return key, hint.Failed(err, "run it as the user that runs egressd serve")
	}
	raw, err := hex.DecodeString(string(text))
	if err != nil || len(raw) != len(key) {
		return key, hint.Failed(fmt.Errorf("%s is no key of placeholders", path), "remove that file; the next start makes another, and sandboxes need their variables anew")
	}
	return credentials.Key(raw), nil
}

// writeOnce makes a whole file, unless another process has made it.
func writeOnce(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), placeholderFile+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Variables are what the programs of a sandbox need in their environment, with placeholders of its own. missing names the
// credentials that cannot be had, for which nothing is exported.
func (d *Daemon) Variables(sandbox string) (all []credentials.Variable, missing []string) {
	return d.keys.variables(sandbox)
}

// VariablesOf reads the credentials of a configuration and returns what egressd serve exports into a sandbox by it.
// complain gets what could not be read.
func VariablesOf(ctx context.Context, c *config.Config, sandbox string, complain func(error)) ([]credentials.Variable, error) {
	if len(c.File.Credentials) == 0 {
		return nil, nil
	}
	key, err := PlaceholderKey(c)
	if err != nil {
		return nil, err
	}
	names, err := newResolver(c)
	if err != nil {
		return nil, err
	}
	defer names.close()
	servers, err := tokenServers(c, nil, names)
	if err != nil {
		return nil, err
	}
	var all []*credentials.Credential
	for _, one := range credentialsOf(c, servers) {
		if one.Plain != nil || len(one.Spec.Variables) == 0 {
			continue
		}
		if err := one.Read(ctx); err != nil {
			complain(err)
		}
		all = append(all, one)
	}
	vars, _ := credentials.NewSet(key, all).Variables(sandbox)
	return vars, nil
}
