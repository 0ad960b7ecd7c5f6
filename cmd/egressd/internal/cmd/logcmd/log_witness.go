package logcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
)

// A witnessDemand is what log verify asks of witnesses.
type witnessDemand struct {
	keys   []string
	within time.Duration
}

func (o *witnessDemand) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&o.keys, "witness", nil, "public `KEY` of a witness, or a file of keys; each must have cosigned the log")
	cmd.Flags().DurationVar(&o.within, "cosigned-within", 0, "maximum age of each witness's last cosignature, such as 2h (default: any)")
}

// read makes keys of what was given.
func (o *witnessDemand) read() (asked verify.Witnessed, err error) {
	if o.within < 0 || o.within > 0 && len(o.keys) == 0 {
		return asked, hint.Misused(errors.New("--cosigned-within is a time that a witness is given"), "egressd log verify --witness KEY --cosigned-within 2h")
	}
	asked.Within = o.within
	for _, text := range o.keys {
		lines := []string{text}
		if _, err := verify.ParseWitnessKey(text); err != nil {
			file, readErr := durable.Read(text, 64<<10)
			if readErr == nil {
				lines = strings.Fields(string(file))
			} else if !errors.Is(readErr, fs.ErrNotExist) {
				return asked, hint.Failed(readErr, "egressd log verify --witness KEY")
			}
		}
		keys, err := witnessKeys(lines)
		if err != nil {
			return asked, hint.Misused(fmt.Errorf("--witness: %w", err), "the key that the witness's operator gives out, as in audit.witnesses")
		}
		asked.By = append(asked.By, keys...)
	}
	return asked, nil
}

func witnessKeys(lines []string) (all []verify.WitnessKey, err error) {
	for _, line := range lines {
		k, err := verify.ParseWitnessKey(line)
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	if len(all) == 0 {
		return nil, errors.New("the file holds no key")
	}
	return all, nil
}

func witnessIdentity(dir, keys string) (string, error) {
	key, err := audit.IdentityOf(dir, keys)
	if errors.Is(err, fs.ErrNotExist) {
		return "", hint.Failed(fmt.Errorf("there is no key for witnesses of the log in %s", dir), "egressd serve with audit.witnesses, which makes it")
	}
	return key, explainKey(err)
}
