package start

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/integrations/systemd"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newInitSystemdCommand(o *planOptions) *cobra.Command {
	var configFile, dir, program string
	cmd := &cobra.Command{
		Use:   "systemd",
		Short: "Write systemd units for egressd serve",
		Long: `Init systemd writes a hardened service and socket units for the listeners of the
policy. systemd holds the sockets, so clients wait instead of failing while
egressd restarts, and ports below 1024 need no capability. It replaces existing
files only with --yes.`,
		Example: `  egressd init systemd --print
  sudo egressd init systemd`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			units, err := unitsFor(configFile, dir, program)
			if err != nil {
				return err
			}
			set := systemd.Files(units)
			set.Notes = append(unseen(units), set.Notes...)
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), set)
		},
	}
	cmd.Flags().StringVar(&configFile, "config", "/etc/egressd/egressd.yaml", "policy `FILE` of the service")
	cmd.Flags().StringVarP(&dir, "output", "o", "/etc/systemd/system", "`FOLDER` to write the units to")
	cmd.Flags().StringVar(&program, "program", "", "`PATH` of egressd in the units (default: this program's)")
	return cmd
}

// unseen says which files of a unit lie where its service has empty folders (ProtectHome, PrivateTmp), so that it would not start.
func unseen(u systemd.Units) (notes []string) {
	for _, f := range []struct{ path, instead string }{
		{u.Program, "install -m 755 " + shell.Word(u.Program) + " /usr/local/bin/egressd, then egressd init systemd --yes --program /usr/local/bin/egressd"},
		{u.Config, "have it in /etc/egressd, then egressd init systemd --yes --config /etc/egressd/" + shell.Word(filepath.Base(u.Config))},
	} {
		for _, folder := range []string{"/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"} {
			if strings.HasPrefix(f.path, folder) {
				notes = append(notes, "the service cannot see "+f.path+", and would not start: "+f.instead)
			}
		}
	}
	return notes
}

// unitsFor reads what units depend on.
func unitsFor(configFile, dir, program string) (u systemd.Units, err error) {
	c, err := config.Load(configFile)
	if err != nil {
		return u, err
	}
	if err := c.OpenListeners(); err != nil { // the service would refuse to start
		return u, err
	}
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return u, hint.Failed(err, "egressd init systemd --program PATH")
		}
	}
	if u.Config, err = filepath.Abs(c.Path); err != nil {
		return u, err
	}
	u.Dir, u.Program = dir, program
	for _, path := range []string{u.Program, u.Config} {
		if strings.ContainsAny(path, " \t\n%$\\\"';") {
			return u, hint.Misused(fmt.Errorf("%q is no path that a unit can name as it is", path), "egressd init systemd --program /usr/bin/egressd --config /etc/egressd/egressd.yaml")
		}
	}
	if err := nameSockets(c, &u); err != nil {
		return u, hint.Misused(err, "correct listen in "+c.Path)
	}
	return u, nil
}

func nameSockets(c *config.Config, u *systemd.Units) error {
	for _, name := range c.AllListeners() {
		path, unix := strings.CutPrefix(name, file.UnixListener)
		switch {
		case unix && strings.ContainsAny(path, " \t\n%"):
			return fmt.Errorf("%s: a unit cannot name it", name)
		case unix && c.AsksForUsers(name):
			u.Users = append(u.Users, path)
		case unix:
			u.Proxy = append(u.Proxy, path)
		default:
			u.Proxy = append(u.Proxy, strings.TrimPrefix(name, file.TLSListener))
		}
	}
	if path := c.AdminSocket(); path != "" && c.File.Listen.Admin != "" {
		if strings.ContainsAny(path, " \t\n%") {
			return fmt.Errorf("%s: a unit cannot name it", path)
		}
		u.Admin = append(u.Admin, path)
	}
	for _, at := range c.AdminAt() {
		if at.Port() == 0 {
			return errors.New("a listener with port 0 would be another one each time")
		}
		u.Admin = append(u.Admin, at.String())
	}
	entered := len(c.File.Listen.Enter) > 0
	for _, s := range c.File.Sandboxes {
		entered = entered || s.Enter != ""
	}
	if entered {
		return errors.New("sockets of enter are not for a service without rights; have them in a policy, and a service, of their own")
	}
	u.Names = c.File.Listen.DNS
	for _, name := range c.File.Listen.Transparent {
		at, tproxy, err := config.CaptureAt(name)
		if err != nil {
			return err
		}
		if tproxy {
			u.TProxy = append(u.TProxy, at.String())
		} else {
			u.NAT = append(u.NAT, at.String())
		}
	}
	for _, at := range c.Listeners() {
		if at.Port() == 0 {
			return errors.New("a listener with port 0 would be another one each time")
		}
	}
	return checkNames(u)
}

// checkNames refuses addresses that systemd would read in another way.
func checkNames(u *systemd.Units) error {
	for _, name := range u.Proxy {
		if at, err := netip.ParseAddrPort(name); !strings.HasPrefix(name, "/") && (err != nil || at.Addr().Zone() != "") {
			return fmt.Errorf("%s: a unit needs an address and a port", name)
		}
	}
	return nil
}
