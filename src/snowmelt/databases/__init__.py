"""The databases that snowmelt reads. `contract` says what others may know of one, `registry` what they load; `comparing` is
`verify`'s part that all of them share, and `mysql` is MySQL and MariaDB."""
