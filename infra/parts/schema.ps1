# The tables, the role, and the identity in it. What runs is the package's own SQL; nothing of it is repeated here.
Set-StrictMode -Version Latest

$firstConnection = 12  # tries, ten seconds apart: a new firewall rule, private name or identity takes a while to be known

function Get-SchemaScript {
    <#
    .SYNOPSIS
        Returns what `celery sqlbeat init --sql` prints for SQL Server: from a file, or from the command itself.
    #>
    [CmdletBinding()]
    [OutputType([string])]
    param(
        [Parameter(Mandatory)] [string] $HostName,
        [Parameter(Mandatory)] [string] $DatabaseName,
        [string] $SchemaFile
    )
    if ($SchemaFile) {
        return Get-Content -Raw -LiteralPath $SchemaFile
    }
    if (-not (Get-Command -Name 'celery' -ErrorAction SilentlyContinue)) {
        throw 'The command celery is not there. Run pip install celery-sqlbeat, or give -SchemaFile.'
    }
    $before = $env:SQLBEAT_DATABASE_URL
    try {
        $env:SQLBEAT_DATABASE_URL = "mssql://$HostName/$DatabaseName"  # which says the kind of database; nothing connects
        $lines = celery sqlbeat init --sql
        if ($LASTEXITCODE -ne 0) {
            throw "celery sqlbeat init --sql ended with exit code $LASTEXITCODE"
        }
    }
    finally {
        $env:SQLBEAT_DATABASE_URL = $before
    }
    $lines -join "`n"
}

function Get-MemberScript {
    <#
    .SYNOPSIS
        Returns the SQL that makes the managed identity a user, and puts it into the role sqlbeat_runner.
    .NOTES
        By its SID, which is its client id: FROM EXTERNAL PROVIDER would need a server that may read the directory. An
        identity that was deleted and made again has another one, so the user of that name goes first.
    #>
    [CmdletBinding()]
    [OutputType([string])]
    param(
        [Parameter(Mandatory)] [ValidatePattern('^[A-Za-z0-9_-]+$')] [string] $IdentityName,
        [Parameter(Mandatory)] [guid] $ClientId
    )
    $sid = '0x' + [Convert]::ToHexString($ClientId.ToByteArray())
    @"
IF EXISTS (SELECT 1 FROM sys.database_principals WHERE name = N'$IdentityName' AND sid <> $sid)
    DROP USER [$IdentityName];
IF DATABASE_PRINCIPAL_ID(N'$IdentityName') IS NULL
    CREATE USER [$IdentityName] WITH SID = $sid, TYPE = E;
ALTER ROLE sqlbeat_runner ADD MEMBER [$IdentityName];
"@
}

function Invoke-Script {
    <#
    .SYNOPSIS
        Runs scripts one after the other as whoever is signed in. The token goes from Azure into the connection, nowhere else.
    #>
    [CmdletBinding()]
    param(
        [Parameter(Mandatory)] [string] $HostName,
        [Parameter(Mandatory)] [string] $DatabaseName,
        [Parameter(Mandatory)] [string[]] $Script
    )
    $token = (Get-AzAccessToken -ResourceUrl 'https://database.windows.net/').Token
    if ($token -is [securestring]) {
        $token = ConvertFrom-SecureString -SecureString $token -AsPlainText  # Az 14 hands it out like this
    }
    $connection = @{
        ServerInstance   = $HostName
        Database         = $DatabaseName
        AccessToken      = $token
        Encrypt          = 'Mandatory'
        AbortOnError     = $true
        DisableVariables = $true  # no text of ours holds one, and a job's text may look like one
    }
    for ($try = 1; ; $try++) {
        try {
            Invoke-Sqlcmd @connection -Query 'SELECT 1' | Out-Null
            break
        }
        catch {
            if ($try -ge $firstConnection) {
                throw
            }
            Write-Verbose "The database does not answer yet: $($_.Exception.Message)"
            Start-Sleep -Seconds 10
        }
    }
    foreach ($one in $Script) {
        Invoke-Sqlcmd @connection -Query $one
    }
}
