# Addresses. What is no address is an error, never "not contained".
# The functions are written as net.NAME because "contains" is a keyword.
package egressd

# class is "public", or the special-purpose space that the address lies in:
# "private", "loopback", "metadata", …
net.class(address) := egressd.net_class(address)

# contains holds where the address lies in the prefix, IPv4-mapped or not.
net.contains(prefix, address) := egressd.net_contains(prefix, address)

# reaches is contains for rules that deny: it holds as well where a translator or
# a tunnel would carry the address into the prefix.
net.reaches(prefix, address) := egressd.net_reaches(prefix, address)

# any holds where one of the addresses lies in one of the prefixes.
net.any(prefixes, addresses) := egressd.net_any(prefixes, addresses)
